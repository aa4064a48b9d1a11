import json
import os
import subprocess
import sys
from pathlib import Path

import many
import pytest

CHECK = """
import os, many
from functools import partial
def check(seed, number):
    assert number != 3, "a failure"
    if seed == 5:
        os.kill(os.getpid(), 9)
    return {"fine": 1}
if __name__ == "__main__":
    many.main(lambda seed: partial(check, seed), "A check.")
"""


@pytest.mark.parametrize("seed", ["1", "5"])
def test_a_case_that_fails_is_listed_and_a_process_that_dies_is_an_error(tmp_path, seed):
    (tmp_path / "check.py").write_text(CHECK)
    done = subprocess.run(
        [sys.executable, tmp_path / "check.py", "12", seed, "--jobs", "2"],
        env=os.environ | {"PYTHONPATH": str(Path(many.__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    if seed == "5":
        assert "terminated abruptly" in done.stderr
        return
    assert json.loads(done.stdout) == {"cases": 12, "fine": 11, "failed": [3]}
    assert "case 3: Traceback" in done.stderr
