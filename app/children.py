"""The processes below this one: none may outlive it.

vLLM starts an EngineCore and workers and ends them itself, as long as everything goes well. Where
it does not, orphans would keep the GPU's memory. Linux only, where vLLM serves; elsewhere the
children of `multiprocessing` alone are known.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

_PROC = Path("/proc")
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_POLL_SECONDS = 0.02

# The tracker removes shared memory that others left behind, and leaves by itself when we do.
_KEPT = b"multiprocessing.resource_tracker"


def adopt_orphans() -> None:
    """Become the parent of grandchildren whose parent dies, so that they can still be found.

    Without it the workers of a killed EngineCore belong to process 1.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """The ids of every living process below this one, parents before their children."""
    if not _PROC.is_dir():
        return [child.pid for child in multiprocessing.active_children() if child.pid is not None]
    below: dict[int, list[int]] = {}
    for entry in os.scandir(_PROC):
        parent = _living_parent(entry.name) if entry.name.isdigit() else None
        if parent is not None:
            below.setdefault(parent, []).append(int(entry.name))
    found = [os.getpid()]
    for pid in found:  # grows as it is walked
        found += below.get(pid, [])
    return found[1:]


def end_all(*, grace_seconds: float) -> list[int]:
    """Ask every descendant to end, then kill what is left; returns the ids that had to be killed.

    Blocks for at most `grace_seconds`, and about a second more where something was killed.
    """
    if grace_seconds > 0:
        _signal_all(signal.SIGTERM)
        _wait_until_gone(grace_seconds)
    killed = _signal_all(signal.SIGKILL)
    _wait_until_gone(1.0)
    _reap()
    return killed


def _signal_all(number: signal.Signals) -> list[int]:
    pids = _ours()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return pids


def _wait_until_gone(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while _ours() and time.monotonic() < deadline:
        _reap()
        time.sleep(_POLL_SECONDS)


def _ours() -> list[int]:
    return [pid for pid in descendants() if _KEPT not in _command(pid)]


def _reap() -> None:
    # Adopted orphans have nobody else to wait for them, and a zombie counts as gone anyway.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _living_parent(pid: str) -> int | None:
    try:
        stat = (_PROC / pid / "stat").read_bytes()
    except OSError:
        return None
    # pid (name, which may hold anything) state parent ...; proc(5)
    state, parent = stat[stat.rindex(b")") + 2 :].split()[:2]
    return None if state in (b"Z", b"X") else int(parent)


def _command(pid: int) -> bytes:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return b""
