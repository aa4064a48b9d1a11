import json
import os
import subprocess
import sys
from pathlib import Path

import many

CHECK = """
import os, many
from functools import partial
def check(seed, number):
    assert number != 3, "a failure"
    if number == 5:
        os.kill(os.getpid(), 9)
    held = bytearray((200 << 20) * (number == 6))
    held[::4096] = b"x" * len(held[::4096])
    return {"fine": 1}
if __name__ == "__main__":
    many.main(lambda seed: partial(check, seed), "A check.")
"""


def test_a_process_that_dies_is_a_failure_of_its_case_and_the_others_go_on(tmp_path):
    (tmp_path / "check.py").write_text(CHECK)
    done = subprocess.run(
        [sys.executable, tmp_path / "check.py", "12", "1", "--jobs", "2"],
        env=os.environ | {"PYTHONPATH": str(Path(many.__file__).parent)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["cases"] == 12
    assert last["fine"] == 10
    assert (last["failed"], last["died"]) == ([3, 5], [5])
    assert last["most_mib_of"] == 6
    assert 200 <= last["most_mib"] < 300
    assert "a failure" in done.stderr


def test_a_run_begins_no_case_after_its_time():
    result = many.run_in_processes(len, ["a", "b"], 1, until=0)
    assert result.counts["cases"] == 0
