"""A summary.json with a value of a wrong type is refused in one line that names the value."""

import copy
import json

import pytest

import abag
from abag.core.files import FileDamaged
from abag.head.data.demo import demo_table
from abag.head.report.results import read_summary
from abag.head.runs.saved_run import NoFinishedRun

QUICK = {
    "split": "random", "head": "mlp", "widths": (8,), "epochs": 1, "report": False,
    "device": "cpu", "folds": 2, "learning_curve": True, "say": lambda _text: None,
}  # fmt: skip
ENCODERS = {"antibody_encoder": "composition", "antigen_encoder": "composition"}


@pytest.fixture(scope="module")
def at(tmp_path_factory):
    at = tmp_path_factory.mktemp("damaged")
    demo_table().head(80).to_csv(at / "pairs.csv", index=False)
    abag.embed_table(at / "pairs.csv", at / "store", **ENCODERS)
    abag.fit(at / "pairs.csv", at / "store", at / "run", **QUICK)
    return at


@pytest.fixture
def summary(at):
    """Return the summary of the run, which may be damaged, and restore it."""
    path = at / "run" / "summary.json"
    whole = path.read_bytes()
    yield json.loads(whole)
    path.write_bytes(whole)


def nodes(value, path=()):
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:1])
    for name, inner in items:
        if isinstance(inner, dict | list):
            yield from nodes(inner, (*path, name))
        else:
            yield (*path, name)


def with_value(summary, path, value):
    changed = at = copy.deepcopy(summary)
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    return changed


def test_no_value_of_another_type_is_read(at, summary):
    file = at / "run" / "summary.json"
    read = [
        path for path in nodes(summary) if path[0] not in ("used", "counts") and "split" not in path
    ]
    assert len(read) > 100
    for path in read:
        file.write_text(json.dumps(with_value(summary, path, [{}])))
        with pytest.raises(FileDamaged) as caught:
            read_summary(at / "run")
        assert str(caught.value).startswith(f"{file}: {path[0]}")
        assert "\n" not in str(caught.value)


COMMANDS = {
    "evaluate": lambda at: abag.evaluate(at / "run", say=print),
    "report": lambda at: abag.report(at / "run", say=print),
    "fit": lambda at: abag.fit(at / "pairs.csv", at / "store", at / "run", **QUICK),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("regimes",), {}, "regimes is {}; expected a list"),
        (("regimes", 0, "metrics"), [1], "regimes[0].metrics is [1]; expected an object"),
        (("regimes", 0, "rmse"), "low", 'is "low"; expected a number'),
        (("regimes", 0, "folds"), 1.5, "folds is 1.5; expected a whole number"),
        (("regimes", 0, "sentence"), True, "sentence is true; expected text"),
        (("data",), {"source": "x"}, "data.pairs is missing"),
        (("warnings",), {}, "warnings is {}; expected a list"),
    ],
)
def test_every_command_that_reads_a_run_names_the_value(at, summary, command, path, value, says):
    file = at / "run" / "summary.json"
    file.write_text(json.dumps(with_value(summary, path, value)))
    with pytest.raises((FileDamaged, NoFinishedRun)) as caught:
        COMMANDS[command](at)
    assert f"{file}: " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert says in str(caught.value)
    (state,) = abag.runs(at / "run")["runs"]
    assert state["state"] == "unreadable"
    assert says in state["reason"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "abag-run 2"}, "format 'abag-run 2' is not supported; this abag reads 'abag-r"),
        ({"epochs": ...}, "lacks epochs. Copy the whole run folder again."),
    ],
)
def test_every_command_refuses_a_run_of_another_version(at, command, change, says):
    path = at / "run" / "config.json"
    whole = path.read_text()
    changed = {n: value for n, value in (json.loads(whole) | change).items() if value is not ...}
    path.write_text(json.dumps(changed))
    try:
        with pytest.raises((FileDamaged, NoFinishedRun)) as caught:
            COMMANDS[command](at)
        (state,) = abag.runs(at / "run")["runs"]
    finally:
        path.write_text(whole)
    for text in (str(caught.value), state["reason"]):
        assert f"{path}: {says}" in text
        assert "\n" not in text


def test_the_summary_of_a_run_is_what_is_read(at, summary):
    assert read_summary(at / "run") == summary
