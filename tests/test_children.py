"""What becomes of the processes below this one."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from app import children

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def start(program: str) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def test_descendants_are_found_and_zombies_are_not():
    child = start("print('ready', flush=True); import time; time.sleep(30)")
    try:
        assert child.pid in children.descendants()
        assert os.getpid() not in children.descendants()
        child.kill()
        end = time.monotonic() + 10
        while child.pid in children.descendants() and time.monotonic() < end:
            time.sleep(0.01)
        assert child.pid not in children.descendants()  # dead, though nobody has waited for it
    finally:
        child.communicate()
