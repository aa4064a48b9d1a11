"""A run folder that is damaged, or of another version of abag, is refused in one line."""

import json

import pytest
from drawn import COMPOSITION

import abag
from abag.core.files import FileDamaged
from abag.head.data.demo import demo_table
from abag.head.runs.run_folder import NoFinishedRun

QUICK = {
    "split": "random", "head": "mlp", "widths": (8,), "epochs": 1, "report": False,
    "device": "cpu", "folds": 2,
}  # fmt: skip
COMMANDS = {
    "evaluate": lambda at: abag.evaluate(at / "run", say=print),
    "report": lambda at: abag.report(at / "run", say=print),
    "fit": lambda at: abag.fit(at / "pairs.csv", at / "store", at / "run", **QUICK),
}


@pytest.fixture(scope="module")
def at(tmp_path_factory):
    at = tmp_path_factory.mktemp("damaged")
    demo_table().head(80).to_csv(at / "pairs.csv", index=False)
    abag.embed_table(at / "pairs.csv", at / "store", **COMPOSITION)
    abag.fit(at / "pairs.csv", at / "store", at / "run", **QUICK)
    return at


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("file", "change", "says"), [
    ("config", {"format": "abag-run 2"}, "format 'abag-run 2' is not supported; this abag rea"),
    ("config", {"epochs": ...}, "epochs is missing. Copy the whole run folder again."),
    ("summary", {"regimes": ...}, "regimes is missing. Copy the whole run folder again."),
])  # fmt: skip
def test_every_command_names_what_is_wrong_with_a_run(at, command, file, change, says):
    path = at / "run" / f"{file}.json"
    whole = path.read_text()
    changed = {n: value for n, value in (json.loads(whole) | change).items() if value is not ...}
    path.write_text(json.dumps(changed))
    try:
        with pytest.raises((FileDamaged, NoFinishedRun)) as caught:
            COMMANDS[command](at)
        (state,) = abag.runs(at / "run")["runs"]
    finally:
        path.write_text(whole)
    assert state["state"] == "unreadable"
    for text in (str(caught.value), state["reason"]):
        assert f"{path}: {says}" in text
        assert "\n" not in text
