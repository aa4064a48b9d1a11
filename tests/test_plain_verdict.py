"""The sentence in plain words that ends a fit, and the summary around it."""

import pytest

from abag.head.evaluation.comparison import Interval
from abag.head.evaluation.metrics import table_metrics
from abag.head.evaluation.verdicts import plain_verdict
from abag.head.report.report import WIDTH, describe_briefly, describe_fit


def scores(rmse):
    of_part = {name: 0.5 for name in table_metrics()} | {"rmse": rmse, "n": 4800}
    return {"validation": of_part, "test": of_part}


SCORES = {"head": scores(1.0), "train_mean": scores(1.2), "composition_ridge": scores(0.9)}


def interval(low, high):
    return Interval((low + high) / 2, low, high, 12, 100)


def judge(split="antigen", **found):
    """`found`: low and high of the difference, by baseline, and by ``order`` within antigens."""

    def compared(baseline, metric):
        ends = found["order" if metric == "spearman_within_antigen" else baseline]
        return None if ends is None else interval(*ends) if ends else Interval(0, None, None, 2, 9)

    return plain_verdict(compared, SCORES, split)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"train_mean": (-0.1, 0.2), "order": (-0.1, 0.1)},
         "On antigens not seen in training this model is not clearly better than predicting the "
         "mean: do not use it to rank binders for new antigens."),
        ({"train_mean": (0.1, 0.2), "order": None}, "model is worse than predicting the mean: do"),
        ({"train_mean": (0.0, 0.0), "order": None}, "is not better than predicting the mean: do"),
        ({"train_mean": (-0.1, 0.2), "order": (0.1, 0.3)}, "use the order, not the values."),
        ({"train_mean": (-0.2, -0.1), "composition_ridge": (0.1, 0.2)},
         "than predicting the mean, but worse than the best baseline, composition_ridge."),
        ({"train_mean": (-0.2, -0.1), "composition_ridge": (-0.1, 0.2)},
         "but not clearly better than the best baseline, composition_ridge."),
        ({"train_mean": (-0.2, -0.1), "composition_ridge": (-0.2, -0.1)},
         "and better than the best baseline, composition_ridge."),
        ({"train_mean": (-0.2, -0.1), "composition_ridge": (0.0, 0.0)},
         "than predicting the mean, and equals the best baseline, composition_ridge."),
        ({"train_mean": (-0.2, -0.1), "composition_ridge": None}, "than predicting the mean."),
        ({"train_mean": ()}, "there are too few test rows to tell"),
        ({"train_mean": None}, "there are too few test rows to tell"),
    ],
)  # fmt: skip
def test_the_verdict_says_what_a_model_can_be_used_for(found, words):
    assert words in judge(**found)


def test_a_model_worse_than_the_mean_of_the_test_labels_is_called_that_first(monkeypatch):
    monkeypatch.setitem(SCORES["head"]["test"], "r2", -0.44)
    assert judge(train_mean=(-0.2, -0.1), composition_ridge=(-0.1, 0.2)) == (
        "On antigens not seen in training this model is worse than predicting the mean of the "
        "test labels (R2 is -0.44). It is better than the mean of the training labels, but not "
        "clearly better than the best baseline, composition_ridge."
    )


def test_the_verdict_names_what_was_held_out():
    found = {"train_mean": (-0.2, -0.1), "composition_ridge": None}
    assert judge("random", **found).startswith(
        "On random pairs, of sequences also seen in training"
    )
    assert judge("both", **found).startswith("On antibodies and antigens not seen in training")
    assert judge("column", **found).startswith("On the test part that was given")


@pytest.fixture
def summary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/first/predictor").mkdir(parents=True)
    (tmp_path / "runs/first/report.html").touch()
    worst = judge("random", train_mean=(-0.1, 0.2), order=(0.1, 0.3))
    return {
        "run": "runs/first", "verdict": worst, "metrics": SCORES["head"],
        "baselines": {name: SCORES[name] for name in ("train_mean", "composition_ridge")},
        "data": {"source": "pairs.csv", "pairs": 1200, "antibodies": 200, "antigens": 24},
        "split": {"name": "random", "folds": 20, "test_pairs": 1200, "rows": {"train": 9}},
    }  # fmt: skip


def test_a_fit_is_described_in_twelve_lines_of_80_columns(summary):
    text = describe_fit(summary)
    lines = text.splitlines()
    assert len(lines) == 12
    assert all(len(line) <= WIDTH for line in lines)
    assert [line.split()[0] for line in lines[3:6]] == ["head", "composition_ridge", "train_mean"]
    assert "4,800 test rows: 1,200 pairs, each tested in 4 of 20 folds" in lines
    assert lines[-2:] == ["report     runs/first/report.html", "predictor  runs/first/predictor"]
    assert len(describe_briefly(summary)) == 4
