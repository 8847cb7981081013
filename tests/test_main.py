"""The command line hands over, and answers wrong input in one line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml

from app.__main__ import main
from app.engine import embedded_model
from app.tenants.keys import key_hash


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No `.env` of a developer is read."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["sreve"], "fairgate: no command 'sreve'; did you mean 'serve'?"),
        (["keys"], "fairgate: no command 'keys'; did you mean 'key'?"),
        (["key"], "fairgate: key takes one argument: new"),
        (["check", "all"], "fairgate: check takes no argument 'all'"),
        (["model", "--verify"], "fairgate: model takes no argument '--verify'"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    command: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 2
    assert capsys.readouterr().err == line + "\n"


def test_without_a_command_the_usage_goes_to_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("usage: fairgate COMMAND")


@pytest.mark.parametrize("command", [["--help"], ["-h"], ["help"], ["model", "--help"]])
def test_help_names_every_command(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 0
    usage = capsys.readouterr().out
    assert all(
        re.search(rf"^  {name}\b", usage, re.MULTILINE)
        for name in ("serve", "check", "key", "model")
    )


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"fairgate \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


def test_help_and_version_import_nothing_of_others() -> None:
    """They answer at once; pydantic alone takes a fifth of a second."""
    script = (
        "import sys\n"
        "from app.__main__ import main\n"
        "main(['--help']), main(['--version']), main(['key', 'new'])\n"
        "sys.exit(bool({'pydantic', 'fastapi', 'uvicorn', 'vllm', 'torch'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert run.returncode == 0


def test_serve_hands_its_arguments_over_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[list[str]] = []

    def serve(argv: list[str]) -> int:
        got.append(argv)
        return 3

    server = types.ModuleType("app.server")
    vars(server)["serve"] = serve
    monkeypatch.setitem(sys.modules, "app.server", server)

    assert main(["serve", "some/model", "--help"]) == 3
    assert got == [["some/model", "--help"]]


def test_check_prints_every_problem_on_its_own_line(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check"]) == 0
    assert capsys.readouterr().out == "ok\n"

    monkeypatch.setenv("FAIRGATE_PROT", "8000")
    monkeypatch.setenv("FAIRGATE_OPS_PORT", "high")
    assert main(["check"]) == 1
    problems = capsys.readouterr().out.splitlines()
    assert len(problems) == 2
    assert any("FAIRGATE_PORT?" in problem for problem in problems)


def test_a_new_key_fits_anywhere_and_its_line_fits_the_tenants_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["key", "new"]) == 0
    key, line = capsys.readouterr().out.splitlines()

    assert re.fullmatch(r"fg_[A-Za-z0-9_-]{43}", key)
    assert yaml.safe_load(line) == {"keys": [key_hash(key)]}
    assert main(["key", "new"]) == 0
    assert capsys.readouterr().out.splitlines()[0] != key


def test_model_prints_the_folder_last_and_reads_the_setting(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        embedded_model, "prepare", lambda cache, *, every_byte: cache / f"model{every_byte}"
    )
    (empty_folder / ".env").write_text("FAIRGATE_CACHE_DIR=/somewhere\n")

    assert main(["model"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "/somewhere/modelTrue"


def test_a_model_that_cannot_be_prepared_is_one_line(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_cache: Path | None, *, every_byte: bool) -> Path:
        raise embedded_model.EmbeddedModelError(f"no network {every_byte}")

    monkeypatch.setattr(embedded_model, "prepare", fail)

    assert main(["model"]) == 1
    assert capsys.readouterr().err == "fairgate: no network True\n"


def test_ctrl_c_while_the_model_is_prepared_is_quiet(empty_folder: Path) -> None:
    script = (
        "import sys, time\n"
        "from app import __main__\n"
        "from app.engine import embedded_model\n"
        "def prepare(cache, *, every_byte):\n"
        "    print('up', flush=True)\n"
        "    time.sleep(60)\n"
        "embedded_model.prepare = prepare\n"
        "sys.exit(__main__.main(['model']))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)},
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, b"")
