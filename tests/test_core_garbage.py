"""The garbage collector in commands, in notebooks and while a table is read."""

import gc
import subprocess
import sys

import pytest

from abag.core.garbage import collection_paused, freeze_imports

AT_THE_END = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count()))\n"
COMMAND = "from abag.cli import main; main(['plan', 'nowhere.csv'])\n"


def frozen_at_the_end(code):
    done = subprocess.run([sys.executable, "-c", AT_THE_END + code], capture_output=True, text=True)
    assert "leak" not in done.stderr
    return int(done.stdout)


def test_a_command_ends_without_a_last_search_for_garbage():
    assert frozen_at_the_end(COMMAND) > 10_000


def test_objects_of_triton_are_collected_because_it_reports_what_is_left():
    pytest.importorskip("triton")
    assert frozen_at_the_end("import triton.language\n" + COMMAND) == 0


def test_what_triton_makes_after_the_imports_are_frozen_is_no_leak():
    pytest.importorskip("triton")
    code = "from abag.core.garbage import *; import torch\nwith one_command(): freeze_imports()\n"
    assert frozen_at_the_end(code + "import triton.language") > 10_000


def test_nothing_is_frozen_in_a_notebook():
    before = gc.get_freeze_count()
    freeze_imports()
    assert gc.get_freeze_count() == before


def test_the_collector_is_paused_only_in_the_block():
    with collection_paused(), collection_paused():
        assert not gc.isenabled()
    assert gc.isenabled()
