"""The rule that CI skips nothing, tried on small runs of pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

SKIPPING = """
import pytest

@pytest.mark.skipif(True, reason="no redis here")
def test_marked():
    pass

def test_in_the_middle():
    pytest.skip("no helm here")
"""
WHOLE_MODULE = """
import pytest
pytest.importorskip("no_such_module_anywhere")
"""
GPU_ONLY = """
import pytest

@pytest.mark.gpu
def test_gpu():
    pytest.skip("no GPU here")

@pytest.mark.xfail(strict=True)
def test_expected():
    assert False
"""


@pytest.mark.parametrize(
    ("source", "in_ci", "passes"),
    [
        pytest.param(SKIPPING, False, True, id="a laptop may skip"),
        pytest.param(SKIPPING, True, False, id="CI may not"),
        pytest.param(WHOLE_MODULE, True, False, id="nor a whole module"),
        pytest.param(GPU_ONLY, True, True, id="but what needs a GPU"),
    ],
)
def test_ci_allows_no_skip_but_of_gpu_tests(tmp_path, source, in_ci, passes):
    (tmp_path / "test_it.py").write_text(source, "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs one\n", "utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # others' plugins take seconds to load
        "CI": "true" if in_ci else "",
    }
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.skips", "-p", "no:cacheprovider", "-q"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode in (0, 5)) is passes, run.stdout
