"""The house's rules that a machine can check: who may know whom, and what the core may not do.

The table is architecture.md's; a file belongs to the first room whose pattern it matches. What
stands behind `if TYPE_CHECKING` counts as well.
"""

from __future__ import annotations

import ast
import fnmatch
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
APP = ROOT / "app"

EVERYTHING = ("app", "app.*")


@dataclass(frozen=True, kw_only=True)
class Room:
    """Files (patterns of module names), what of `app` they may import, and what of others.

    A room may always import itself.
    """

    files: tuple[str, ...]
    app: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


ENGINE_OWN = ("app.admission", "app.admission.*", "app.errors")
# numpy comes with torch; gguf and huggingface_hub are how transformers reads the embedded model.
ENGINE_OTHERS = ("vllm", "torch", "transformers", "numpy", "gguf", "huggingface_hub")

ROOMS = {
    "package": Room(files=("app",)),
    "errors": Room(files=("app.errors",)),
    "admission": Room(files=("app.admission", "app.admission.*"), app=("app.errors",)),
    "tenants": Room(
        files=("app.tenants", "app.tenants.*"),
        app=("app.errors",),
        others=("yaml", "watchfiles", "limits"),
    ),
    "metrics": Room(
        files=("app.metrics", "app.metrics_page", "app.instruments"),
        app=("app.admission.events", "app.errors"),
        others=("prometheus_client",),
    ),
    "logs": Room(files=("app.logs",), others=("structlog",)),
    "settings": Room(
        files=("app.settings",),
        app=("app.admission.*", "app.tenants.model"),
        others=(
            "pydantic",
            "pydantic_settings",
            "dotenv",
        ),  # the last is the second one's own reader
    ),
    "engine api": Room(files=("app.engine.api",), app=("app.errors",)),
    # vLLM's routes and what they need around them: their errors' bodies, the held status line.
    "engine routes": Room(
        files=(
            *("app.engine.openai_routes", "app.engine.api_errors", "app.engine.held_answer"),
            "app.engine.room",
        ),
        app=(*ENGINE_OWN, "app.engine.*", "app.web.answers"),
        others=(*ENGINE_OTHERS, "fastapi", "starlette"),
    ),
    "engine": Room(files=("app.engine", "app.engine.*"), app=ENGINE_OWN, others=ENGINE_OTHERS),
    "web edge": Room(
        files=("app.web.answers", "app.web.caller"),
        app=("app.tenants.*", "app.errors"),
        others=("starlette",),
    ),
    # The door binds the request id to the log lines of its context.
    "web": Room(
        files=("app.web", "app.web.*"),
        app=("app.admission.statistics", "app.tenants.*", "app.errors", "app.metrics", "app.logs"),
        others=("fastapi", "starlette"),
    ),
    # Where a document becomes text, and nowhere else, its libraries are known.
    "documents": Room(
        files=("app.summaries.charsets", "app.summaries.extract", "app.summaries.form"),
        app=("app.summaries.*", "app.errors"),
        others=(
            *("charset_normalizer", "docx", "inscriptis", "lxml", "pypdf", "python_multipart"),
            "starlette",
        ),
    ),
    "chat and summaries": Room(
        files=("app.chat", "app.chat.*", "app.summaries", "app.summaries.*"),
        app=(
            "app.engine.api",
            "app.tenants.model",
            "app.web.answers",
            "app.web.caller",
            "app.errors",
        ),
        others=("fastapi", "starlette"),
    ),
    "gateway": Room(
        files=("app.gateway", "app.tenancy"), app=EVERYTHING, others=("fastapi", "starlette")
    ),
    # Opens the ops port, with what that shows, before it imports the gateway.
    "server": Room(
        files=(
            *("app.server", "app.draining", "app.signals", "app.children", "app.certificates"),
            "app.flags",
        ),
        app=(
            *("app.gateway", "app.settings", "app.metrics", "app.metrics_page", "app.logs"),
            *("app.web.ops", "app.web.health", "app.errors"),
        ),
        others=("uvicorn", "yaml"),
    ),
    "command line": Room(
        files=("app.__main__",),
        app=(
            *("app.server", "app.gateway", "app.settings", "app.tenants.*"),
            "app.engine.embedded_model",
        ),
    ),
}

FRAMEWORK = {"fastapi", "starlette"}
FRAMEWORK_FILES = {"app.chat.socket", "app.summaries.routes"}
FORBIDDEN_NAMES = ("utils", "helpers", "common", "constants", "base_*", "managers", "*_manager")
WAITING_FILES = {"app.admission.dispatcher", "app.admission.clock"}
WORLD = {"time", "random", "logging", "datetime"}


@dataclass(frozen=True)
class Import:
    """`target` as a full name: a module, or a name in one."""

    target: str
    line: int
    top_level: bool


@dataclass(frozen=True)
class Source:
    """One file of the product."""

    name: str
    path: Path
    tree: ast.Module

    def imports(self) -> Iterator[Import]:
        at_top = {id(node) for node in self.tree.body}
        for node in ast.walk(self.tree):
            top = id(node) in at_top
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(alias.name, node.lineno, top)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.name}:{node.lineno} imports relatively"
                for alias in node.names:
                    yield Import(f"{node.module}.{alias.name}", node.lineno, top)


@cache
def sources() -> tuple[Source, ...]:
    found = []
    for path in sorted(APP.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Source(name, path, ast.parse(path.read_text("utf-8"))))
    return tuple(found)


@cache
def modules() -> frozenset[str]:
    return frozenset(source.name for source in sources())


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def room_of(name: str) -> tuple[str, Room]:
    return next((title, room) for title, room in ROOMS.items() if matches(name, room.files))


def imported_module(target: str) -> str:
    """`app.errors.NotFound` is in the module `app.errors`."""
    return target if target in modules() else target.rpartition(".")[0]


@pytest.mark.parametrize("title", ROOMS)
def test_each_room_knows_only_whom_it_may(title):
    room = ROOMS[title]
    allowed = (*room.files, *room.app)
    wrong = []
    for source in sources():
        if room_of(source.name)[0] != title:
            continue
        for found in source.imports():
            top = found.target.partition(".")[0]
            if top == "app":
                fine = matches(imported_module(found.target), allowed)
            else:
                fine = top in sys.stdlib_module_names or top in room.others
            if not fine:
                wrong.append(f"{source.path.relative_to(ROOT)}:{found.line} {found.target}")
    assert wrong == []


def test_every_file_has_a_room_and_every_room_a_file():
    homes = {room_of(source.name)[0] for source in sources()}
    assert homes == set(ROOMS)


def test_vllm_is_imported_by_the_engine_room_alone():
    importers = {
        source.name
        for source in sources()
        for found in source.imports()
        if found.target.partition(".")[0] == "vllm"
    }
    assert {name for name in importers if not name.startswith("app.engine.")} == set()


def test_chat_and_summaries_meet_the_framework_in_one_file_each():
    wrong = {
        source.name
        for source in sources()
        for found in source.imports()
        if source.name.startswith(("app.chat", "app.summaries"))
        and found.target.partition(".")[0] in FRAMEWORK
    }
    assert wrong <= FRAMEWORK_FILES


def test_what_is_imported_first_imports_nothing_heavy():
    """Both ports listen before the framework and vLLM are there."""
    light = {"app", "app.engine", "app.engine.api", "app.flags", "app.web", "app.web.ops"}
    light |= {"app.server", "app.draining", "app.web.health"}
    heavy = {"vllm", "torch", "transformers", *FRAMEWORK, "app.gateway"}
    for source in sources():
        if source.name in light:
            for found in source.imports():
                tops = {found.target.partition(".")[0], imported_module(found.target)}
                assert not (found.top_level and tops & heavy), f"{source.name}:{found.line}"


def test_only_the_dispatcher_and_the_clock_of_admission_await():
    waiting = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.AsyncFunctionDef)
    wrong = [
        f"{source.name}:{node.lineno}"
        for source in sources()
        if source.name.startswith("app.admission") and source.name not in WAITING_FILES
        for node in ast.walk(source.tree)
        if isinstance(node, waiting)
    ]
    assert wrong == []


def test_the_core_of_admission_asks_neither_clock_nor_dice_nor_log():
    """Time and chance are parameters, and what happens leaves as events."""
    wrong = [
        f"{source.name}:{line}"
        for source in sources()
        if source.name.startswith("app.admission") and source.name not in WAITING_FILES
        for line in outside_calls(source.tree)
    ]
    assert wrong == []


def outside_calls(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in WORLD:
            yield node.lineno
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner, name = node.func.value, node.func.attr
        # A generator with a seed is a value like any other.
        seeded = name == "Random" and bool(node.args)
        if isinstance(owner, ast.Name) and owner.id in WORLD and not seeded:
            yield node.lineno


def test_no_file_is_named_for_nothing_in_particular():
    names = [source.path.stem for source in sources()]
    assert [name for name in names if matches(name, FORBIDDEN_NAMES)] == []


@pytest.mark.parametrize(
    ("module", "target", "fine"),
    [
        pytest.param("app.admission.ledger", "app.errors.QueueFull", True, id="a name in a module"),
        pytest.param("app.admission.ledger", "app.web.answers.encode", False, id="upwards"),
        pytest.param("app.chat.session", "app.engine.api.Work", True, id="the engine's api"),
        pytest.param("app.chat.session", "app.engine.text.text_engine", False, id="its inside"),
    ],
)
def test_the_table_tells_right_from_wrong(module, target, fine):
    """It must be able to fail."""
    _, room = room_of(module)
    assert matches(imported_module(target), (*room.files, *room.app)) is fine
