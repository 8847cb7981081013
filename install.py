"""Sets the project up in `.venv`: what `make install` runs, needing nothing but a Python.

Safe to repeat: a stamp, written last, says what was installed from which files, and while it holds
there is nothing to do. After an interruption the same command carries on. uv does the installing,
several times faster than pip; as it reads no settings of pip, it is handed pip's package sources.
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = str(VENV / "bin" / "python")
MADE = VENV / ".made"
UNFINISHED = VENV / ".unfinished"
STAMP = VENV / ".installed"
CONSTRAINTS = ROOT / "constraints.txt"

SUPPORTED = ((3, 11), (3, 13))
EXTRAS = ("redis", "documents", "dev")

TORCH_EXTENSIONS = ("torchvision", "torchaudio", "torchcodec")
"""Text serving needs none of them, and beside a torch of another build they break transformers."""

DEVICE_PACKAGES = ("torch", "nvidia-", "cuda-", "triton")
"""Never pinned by us: vLLM pins torch, and the build of torch, which names its device, the rest."""

STARTUP_IMPORTS = (
    "import vllm.entrypoints.launchers.cli_args, vllm.v1.engine.async_llm, vllm.v1.engine.core, "
    "vllm.entrypoints.generate.api_router, vllm.entrypoints.launchers.api_server.app_state"
)
"""What the gateway and its engine import before they are ready."""

CONSTRAINTS_HEADER = """\
# Exact versions of what `make install` installs, made by `make constraints` on Python 3.11.
# torch and what it brings along are missing on purpose: they differ by device, and vLLM pins torch.
"""


class SetupError(Exception):
    """The set-up cannot go on; the message is one line that says what to do."""


def say(line: str) -> None:
    print(f"install: {line}", flush=True)


def device() -> str:
    """The extra of pyproject.toml that fits this machine: `gpu` where an NVIDIA GPU is seen."""
    if Path("/dev/nvidia0").exists():
        return "gpu"
    listing = shutil.which("nvidia-smi") and subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, check=False
    )
    return "gpu" if listing and listing.returncode == 0 and b"GPU" in listing.stdout else "cpu"


def version_of(python: str) -> tuple[int, int] | None:
    """Major and minor version of an interpreter, None where it does not run."""
    code = "import sys; print(*sys.version_info[:2])"
    try:
        run = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    major, minor = map(int, run.stdout.split())
    return major, minor


def is_supported(version: tuple[int, int] | None) -> bool:
    return version is not None and SUPPORTED[0] <= version <= SUPPORTED[1]


def fingerprint(extra: str, version: tuple[int, int] | None) -> str:
    """Changes with whatever would make an installation differ, the folder it lies in included."""
    digest = hashlib.sha256(f"{ROOT} {extra} {version}".encode())
    for name in ("pyproject.toml", "constraints.txt", "install.py"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def make_venv() -> None:
    """Create `.venv`; a complete one is kept, whichever Python it has, a half-made one is not."""
    if MADE.exists() and is_supported(version_of(PYTHON)):
        return
    found = sys.version.split()[0]
    if not is_supported(sys.version_info[:2]):
        raise SetupError(
            f"Python 3.11 to 3.13 is needed, this is {found}: "
            "install python3.11, or name one: make install PYTHON=/path/to/python3.11"
        )
    say(f"making .venv with Python {found} ({sys.executable})")
    try:
        venv.create(VENV, with_pip=True, clear=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SetupError(
            f"the virtual environment could not be made ({error}); "
            "on Debian and Ubuntu: apt-get install python3-venv"
        ) from error
    MADE.touch()


def has_module(name: str) -> bool:
    run = subprocess.run([PYTHON, "-m", name, "--version"], capture_output=True, check=False)
    return run.returncode == 0


def install_uv() -> None:
    if has_module("uv"):
        return
    say("installing uv")
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # --force-reinstall: an interrupted pip may have left a uv that does not run.
    run = subprocess.run([*pip, "--force-reinstall", "-c", str(CONSTRAINTS), "uv"], check=False)
    if run.returncode != 0:
        raise SetupError("pip could not install uv: its message stands above")


def pip_settings(listing: str) -> dict[str, list[str]]:
    """Values by option from `pip config list`, the environment before [install] before [global]."""
    found: dict[str, tuple[int, list[str]]] = {}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        rank = {"global": 0, "install": 1, ":env:": 2}.get(section, -1)
        if rank >= found.get(option, (0, []))[0]:
            found[option] = rank, str(ast.literal_eval(value)).split()
    return {option: values for option, (_, values) in found.items()}


def uv_sources(settings: dict[str, list[str]]) -> list[str]:
    """uv's flags for pip's package sources."""
    flags = [f"--default-index={url}" for url in settings.get("index-url", [])[:1]]
    extra = [f"--index={url}" for url in settings.get("extra-index-url", [])]
    if extra:
        # pip takes the best version of all its indexes, uv on its own that of the first.
        flags += [*extra, "--index-strategy=unsafe-best-match"]
    flags += [f"--find-links={place}" for place in settings.get("find-links", [])]
    flags += [f"--allow-insecure-host={host}" for host in settings.get("trusted-host", [])]
    if settings.get("no-index", ["false"])[0].lower() in {"1", "true", "yes", "on"}:
        flags.append("--no-index")
    return flags


def uv_environment(settings: dict[str, list[str]]) -> dict[str, str]:
    """What pip knows and uv reads from its environment; what is set there already stays."""
    timeout = settings.get("default-timeout", settings.get("timeout", ["120"]))[0]
    known = {"UV_HTTP_TIMEOUT": timeout, "VIRTUAL_ENV": str(VENV)}
    if cert := settings.get("cert"):
        known["SSL_CERT_FILE"] = cert[0]
    if proxy := settings.get("proxy"):
        known["ALL_PROXY"] = proxy[0]
    return known | os.environ


class Installer:
    """uv inside `.venv`, with pip's sources, and PyTorch's own index where those have no torch."""

    def __init__(self, extra: str) -> None:
        self._extra = extra
        pip = [PYTHON, "-m", "pip", "config", "list"]
        settings = pip_settings(
            subprocess.run(pip, capture_output=True, text=True, check=True).stdout
        )
        self._sources = uv_sources(settings)
        self._environment = uv_environment(settings)

    def project(self, *, afresh: bool) -> None:
        """Install the project, editable, with everything it needs at the versions laid down."""
        target = f"{ROOT}[{','.join((self._extra, *EXTRAS))}]"
        wanted = ["pip", "install", "--editable", target]
        wanted += ["--constraints", str(CONSTRAINTS), "--build-constraints", str(CONSTRAINTS)]
        wanted += self._sources
        wanted += self._torch_source([*wanted, "--dry-run"])
        if afresh:
            wanted.append("--reinstall")
        if self._uv(wanted).returncode != 0:
            raise SetupError("uv could not install: its message stands above; repeat to carry on")

    def resolve(self, preferred: str = "") -> str:
        """Resolve pyproject.toml anew: the `preferred` versions where they fit, else the newest."""
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as pins:
            pins.write(preferred)
            pins.flush()
            wanted = ["pip", "compile", "pyproject.toml", "--no-header", "--no-annotate", "--quiet"]
            wanted += ["--output-file", pins.name]
            wanted += [f"--extra={extra}" for extra in (self._extra, *EXTRAS)]
            wanted += self._sources
            self._torch_source(wanted)  # the trial that succeeds has written the file
            return Path(pins.name).read_text()

    def drop_broken_torch_extensions(self) -> None:
        """Remove what does not load beside this torch; run after each installation."""
        check = subprocess.run(
            [PYTHON, "-c", "import torchvision"], capture_output=True, check=False
        )
        if check.returncode != 0:
            say("torchvision does not load beside this torch: removing it, text needs none of it")
            self._uv(["pip", "uninstall", "--quiet", *TORCH_EXTENSIONS])

    def _torch_source(self, trial: list[str]) -> list[str]:
        """No flag where pip's own sources have everything, else the one for PyTorch's index."""
        first = self._uv(trial, capture=True)
        if first.returncode == 0:
            return []
        flag = f"--torch-backend={'auto' if self._extra == 'gpu' else 'cpu'}"
        say("not everything is in pip's package sources: asking PyTorch's index for torch")
        second = self._uv([*trial, flag], capture=True)
        if second.returncode == 0:
            return [flag]
        raise SetupError(
            f"uv found no set of packages.\nWith pip's sources:\n{first.stderr.strip()}\n"
            f"With PyTorch's index:\n{second.stderr.strip()}"
        )

    def _uv(
        self, arguments: list[str], *, capture: bool = False
    ) -> subprocess.CompletedProcess[str]:
        command = [PYTHON, "-m", "uv", *arguments]
        return subprocess.run(
            command, capture_output=capture, text=True, cwd=ROOT, env=self._environment, check=False
        )


def joint_constraints(gpu: str, cpu: str) -> str:
    """The pins of both resolutions, without those that only one of them could live with."""
    pins: dict[str, str] = {}
    for line in (gpu + cpu).splitlines():
        name, _, version = line.partition("==")
        if version and "+" not in version and not name.startswith(DEVICE_PACKAGES):
            pins[name] = "" if pins.get(name, version) != version else version
    return CONSTRAINTS_HEADER + "".join(
        f"{name}=={pins[name]}\n" for name in sorted(pins) if pins[name]
    )


def write_constraints() -> None:
    """Resolve for both devices, each after the other's versions: most packages then agree."""
    make_venv()
    install_uv()
    gpu, cpu = Installer("gpu"), Installer("cpu")
    for_cpu = cpu.resolve(preferred=gpu.resolve())
    CONSTRAINTS.write_text(joint_constraints(gpu.resolve(preferred=for_cpu), for_cpu))
    say("wrote constraints.txt; `make install` brings .venv to it")


def compile_imports() -> None:
    """Let Python keep the bytecode of vLLM's modules, even where the environment forbids it.

    uv compiles nothing, and without bytecode each start takes twice as long. A start compiles for
    itself what is missing, so a failure here does no harm.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(
        [PYTHON, "-W", "ignore", "-c", STARTUP_IMPORTS],
        env=environment | {"VLLM_LOGGING_LEVEL": "ERROR"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


def install(extra: str) -> None:
    """Bring `.venv` to what pyproject.toml and constraints.txt say."""
    if STAMP.exists() and STAMP.read_text() == fingerprint(extra, version_of(PYTHON)):
        say(f"nothing to do ({extra})")
        return
    make_venv()
    STAMP.unlink(missing_ok=True)
    install_uv()
    installer = Installer(extra)
    # A package whose files were being laid when uv was killed looks installed: lay them all again.
    interrupted = UNFINISHED.exists()
    UNFINISHED.touch()
    say(f"installing the packages of extra {extra!r}" + (", all again" if interrupted else ""))
    installer.project(afresh=interrupted)
    UNFINISHED.unlink()
    say("checking torch")
    installer.drop_broken_torch_extensions()
    say("compiling what a start imports")
    compile_imports()
    STAMP.write_text(fingerprint(extra, version_of(PYTHON)))
    say("done")


def main() -> int:
    parser = argparse.ArgumentParser(description="Set the project up in .venv.")
    parser.add_argument("--device", choices=("cpu", "gpu"), help="default: what this machine has")
    parser.add_argument("--constraints", action="store_true", help="write constraints.txt anew")
    options = parser.parse_args()
    extra = options.device or device()
    try:
        with Path(__file__).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two at once: the second finds nothing to do
            if options.constraints:
                write_constraints()
            else:
                install(extra)
    except SetupError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted; the same command carries on")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
