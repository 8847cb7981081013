"""`make install` on a project of three tiny packages, and what its files promise one another."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import install

ROOT = Path(__file__).parent.parent

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "tiny"
version = "1"

[project.optional-dependencies]
cpu = ["sound==1", "torchvision==1"]
gpu = []
redis = []
documents = []
dev = []
"""

BACKEND = """
import os, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "tiny-1-py3-none-any.whl"
    info = "tiny-1.dist-info/"
    files = {
        info + "METADATA": "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1\\n"
        "Provides-Extra: cpu\\nRequires-Dist: sound==1; extra == 'cpu'\\n"
        "Requires-Dist: torchvision==1; extra == 'cpu'\\n",
        info + "WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        "tiny.pth": os.getcwd(),
    }
    files[info + "RECORD"] = "".join(f"{path},,\\n" for path in [*files, info + "RECORD"])
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return name
"""


def write_wheel(links: Path, name: str, files: Mapping[str, bytes], version: str = "1") -> None:
    info = f"{name}-{version}.dist-info/"
    everything = dict(files) | {
        info + "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        info + "WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*everything, info + "RECORD"])
    with zipfile.ZipFile(links / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, content in everything.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = (0o100755 if "/scripts/" in path else 0o100644) << 16
            wheel.writestr(entry, content)
        wheel.writestr(info + "RECORD", record)


def write_uv_wheel(links: Path) -> None:
    """Pack the installed uv again: these tests need no network."""
    uv = importlib.metadata.distribution("uv")
    files = {}
    for file in uv.files or []:
        if file.parts[0] == "uv" and file.suffix == ".py":
            files[str(file)] = file.read_binary()
        elif file.name == "uv":
            files[f"uv-{uv.version}.data/scripts/uv"] = file.read_binary()
    write_wheel(links, "uv", files, uv.version)


class Project:
    """A folder with our install.py and packages that pip and uv find without a network."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.packages = self.folder / ".venv/lib" / f"python{sys.version[:4]}" / "site-packages"
        self._links = folder / "links"
        self._cache = folder / "uv"
        self.folder.mkdir()
        self._links.mkdir()
        shutil.copy(ROOT / "install.py", self.folder)
        (self.folder / "pyproject.toml").write_text(PYPROJECT)
        (self.folder / "backend.py").write_text(BACKEND)
        (self.folder / "constraints.txt").write_text("sound==1\n")
        write_wheel(self._links, "sound", {"sound.py": b"", "sound_part.py": b""})
        write_wheel(self._links, "torchvision", {"torchvision.py": b"raise RuntimeError('nms')"})
        write_uv_wheel(self._links)

    def install(self) -> str:
        """Run install.py; what it printed. Only pip's own settings say where packages are."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_"))}
        run = subprocess.run(
            [sys.executable, "install.py", "--device", "cpu"],
            cwd=self.folder,
            env=kept
            | {
                "PIP_CONFIG_FILE": os.devnull,
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": str(self._links),
            }
            | {"UV_CACHE_DIR": str(self._cache)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stdout
        return run.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("setup"))
    project.install()
    return project


def test_everything_is_installed_but_a_torchvision_that_does_not_load(installed: Project) -> None:
    assert (installed.packages / "sound.py").exists()
    assert (installed.packages / "tiny.pth").read_text() == str(installed.folder)
    assert not (installed.packages / "torchvision.py").exists()


def test_the_second_time_there_is_nothing_to_do(installed: Project) -> None:
    assert installed.install() == "install: nothing to do (cpu)\n"


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_file_is_installed_again(installed: Project, name: str) -> None:
    with (installed.folder / name).open("a") as file:
        file.write("# changed\n")

    printed = installed.install()

    assert "installing the packages" in printed
    assert "all again" not in printed


def test_a_package_half_laid_when_the_set_up_was_killed_is_laid_again(installed: Project) -> None:
    """Its metadata may lie there already, and uv would believe it."""
    (installed.packages / "sound_part.py").unlink()
    (installed.folder / ".venv/.installed").unlink()
    (installed.folder / ".venv/.unfinished").touch()

    installed.install()

    assert (installed.packages / "sound_part.py").exists()
    assert installed.install() == "install: nothing to do (cpu)\n"


def test_a_half_made_virtual_environment_is_made_again(installed: Project) -> None:
    (installed.folder / ".venv/.made").unlink()
    (installed.folder / ".venv/.installed").unlink()
    shutil.rmtree(installed.packages / "pip" / "_internal")

    assert "making .venv" in installed.install()


def test_the_environment_overrules_pips_files_and_install_overrules_global() -> None:
    listing = (
        ":env:.find-links='/env'\n"
        "global.find-links='/global'\n"
        "global.index-url='https://index.invalid/simple'\n"
        "install.index-url='https://other.invalid/simple'\n"
        "global.extra-index-url='\\nfile:///one\\nfile:///two'\n"
        "global.trusted-host='index.invalid'\n"
    )
    assert install.uv_sources(install.pip_settings(listing)) == [
        "--default-index=https://other.invalid/simple",
        "--index=file:///one",
        "--index=file:///two",
        "--index-strategy=unsafe-best-match",
        "--find-links=/env",
        "--allow-insecure-host=index.invalid",
    ]
    assert install.uv_sources(install.pip_settings("global.no-index='true'\n")) == ["--no-index"]
    assert install.uv_sources({}) == []


def test_pips_certificates_and_patience_reach_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("UV_HTTP_TIMEOUT", raising=False)
    environment = install.uv_environment({"cert": ["/ca.pem"], "default-timeout": ["7"]})

    assert (environment["SSL_CERT_FILE"], environment["UV_HTTP_TIMEOUT"]) == ("/ca.pem", "7")
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "9")
    assert install.uv_environment({"default-timeout": ["7"]})["UV_HTTP_TIMEOUT"] == "9"


def test_constraints_hold_for_both_devices() -> None:
    gpu = "both==1\nfought-over==1\nonly-gpu==2\ntorch==2.13.0\nnvidia-cublas==13\ntriton==3\n"
    cpu = "both==1\nfought-over==2\nonly-cpu==3\ntorch==2.13.0+cpu\nlocal==1+cpu\n"

    pins = install.joint_constraints(gpu, cpu).removeprefix(install.CONSTRAINTS_HEADER)

    assert pins.splitlines() == ["both==1", "only-cpu==3", "only-gpu==2"]


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[a-z0-9.!]+", line) for line in pins)
    return dict(line.split("==") for line in pins)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pyproject() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_constraints_pin_every_package_that_pyproject_names_and_no_torch() -> None:
    project = pyproject()
    extras = project["optional-dependencies"]
    named = [*project["dependencies"], *(r for extra in extras.values() for r in extra)]
    names = {normal(re.split(r"[^A-Za-z0-9._-]", requirement)[0]) for requirement in named}

    assert names <= set(constraints())
    assert not {"torch", "torchvision", "torchaudio", "torchcodec"} & set(constraints())


def test_this_environment_is_the_constrained_one() -> None:
    """Fails where `make install` has not been run after a change."""
    pins = constraints()
    # Not sys.path: setuptools, once imported, puts the copies of others that it carries there.
    installed = importlib.metadata.distributions(path=[sysconfig.get_path("purelib")])
    here = {normal(d.metadata["Name"]): d.version for d in installed}

    assert {n: v for n, v in here.items() if pins.get(n, v) != v} == {}


def test_both_devices_get_the_same_release_of_vllm() -> None:
    extras = pyproject()["optional-dependencies"]
    releases = {
        name: next(r.partition("==")[2] for r in extras[name] if r.startswith("vllm"))
        for name in ("cpu", "gpu")
    }
    assert releases["cpu"] == releases["gpu"]


def make(*arguments: str) -> str:
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("flags", "prepared"),
    [
        ("", True),
        ("--max-num-seqs 4", True),
        ("--simulate 8b-rtx-pro-6000", True),
        ("Qwen/Qwen3-0.6B --max-num-seqs 4", False),
        ("--port 8001 --model Qwen/Qwen3-0.6B", False),
    ],
)
def test_serve_prepares_the_embedded_model_unless_another_is_named(
    flags: str, prepared: bool
) -> None:
    steps = make("--dry-run", "serve", f"ARGS={flags}", "PYTHON=python3")

    assert "install.py" in steps
    assert ("-m app model" in steps) is prepared
    assert f"-m app serve {flags}".rstrip() in steps


def test_make_alone_explains_every_target() -> None:
    targets = re.findall(r"^\.PHONY: (\w+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    explained = re.findall(r"make (\w+)", make())

    assert sorted(explained) == sorted(set(targets) - {"help"})
