"""What becomes of the processes below this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from app import children

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# Prints when it is ready, and what it then gets to see.
WATCHES = """
import signal, sys, time
def seen(number, frame):
    print(signal.Signals(number).name, flush=True)
    sys.exit()
signal.signal(signal.SIGINT, seen)
signal.signal(signal.SIGTERM, seen)
print("ready", flush=True)
time.sleep(30)
"""


def start(program: str) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def test_ctrl_c_does_not_reach_a_child_that_was_started_uninterrupted():
    """The terminal sends it to the whole group; the child hears SIGTERM all the same."""
    with children.uninterrupted():
        sheltered = start(WATCHES)
    exposed = start(WATCHES)
    for child in (sheltered, exposed):
        child.send_signal(signal.SIGINT)
    assert exposed.communicate(timeout=10)[0] == "SIGINT\n"
    sheltered.send_signal(signal.SIGTERM)
    assert sheltered.communicate(timeout=10)[0] == "SIGTERM\n"


def test_only_the_starting_thread_is_deaf():
    """The process itself must still hear its signals."""
    masks: list[set[int]] = []
    with children.uninterrupted():
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    looks = threading.Thread(
        target=lambda: masks.append({*signal.pthread_sigmask(signal.SIG_BLOCK, [])})
    )
    looks.start()
    looks.join()
    assert signal.SIGINT not in masks[0]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


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
