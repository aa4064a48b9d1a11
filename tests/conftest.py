"""Settings that must be made before any test module is imported."""

import gc
import os
import signal

# Before torch is imported, here or in a child: two threads a test on busy cores are 20 times slower
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings
from run_scripts import MODULES, script_runner

from abag.core.messages import reporting

# A shell that starts pytest in the background ignores SIGINT, and so would every process tested
signal.signal(signal.SIGINT, signal.default_int_handler)

# On busy cores any example can be slow. Derandomised: the same commit draws the same examples.
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=30)
settings.register_profile("abag", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)


# A disk takes 7 ms to say that a file is written, a seventh of the tests' time. Tests of power cuts
# read which files were asked for, not whether the disk obeyed.
os.fsync = os.fstat


def pytest_configure(config):
    """Choose how Hypothesis draws; its option --hypothesis-profile is read later and wins."""
    chosen = config.option.markexpr
    usual = "random" if chosen == "slow" else "quick" if "not ci" in chosen else "abag"
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", usual))


def pytest_collection_finish():
    """Spare the garbage collector what was imported: its rounds took a tenth of the tests' time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    """Collect it again, or libraries report at the end that they leaked it."""
    gc.unfreeze()


@pytest.fixture
def said():
    """Return the list of the messages of a test, which are not printed."""
    messages = []
    with reporting(messages.append):
        yield messages


@pytest.fixture(scope="session")
def run_script():
    """Return a function of log and command that runs a script and returns its exit status."""
    with script_runner(*MODULES) as run:
        yield run


# Triton reads this when it is first imported, by whomever; without a GPU kernels are interpreted
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
# tables are as wide as usual, whatever terminal the tests run in
os.environ["COLUMNS"] = "80"
