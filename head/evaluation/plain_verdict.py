"""One sentence in plain words: whether a model can be used, and for what."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from abag.head.evaluation.bootstrap import Interval
from abag.head.evaluation.comparison import best_baseline, relation
from abag.head.evaluation.metrics import Scores

HELD_OUT = {
    "antigen": ("On antigens not seen in training", "rank binders for new antigens"),
    "antibody": ("On antibodies not seen in training", "rank new antibodies"),
    "both": ("On antibodies and antigens not seen in training", "rank new pairs"),
    "random": ("On random pairs, of sequences also seen in training,", "rank other pairs"),
    "mutations": ("On variants far from those in training", "rank distant variants"),
}
"""What a split holds out, and what a model would be used for."""
AS_GIVEN = ("On the test part that was given", "rank new pairs")


def plain_verdict(
    compared: Callable[[str, str], Interval | None],
    scores: Mapping[str, Mapping[str, Scores]],
    split: str,
) -> str:
    """Judge the head by its errors against the training mean and the strongest baseline.

    A head that is no better than the mean can still order the antibodies of an antigen.

    Parameters
    ----------
    compared, scores
        As for `abag.head.evaluation.comparison.verdicts`.
    split : str
        Name of the split method.
    """
    where, use = HELD_OUT.get(split, AS_GIVEN)
    against_mean = compared("train_mean", "rmse") if "train_mean" in scores else None
    if against_mean is None or not against_mean.known:
        return (
            f"{where} there are too few test rows to tell whether this model is better than "
            f"predicting the mean: do not use it to {use}."
        )
    found = relation(against_mean, "rmse")
    if found == "better":
        r2, beside = scores["head"]["test"]["r2"], _beside(compared, scores)
        if r2 is not None and r2 < 0:
            return (
                f"{where} this model is worse than predicting the mean of the test labels (R2 is "
                f"{r2:.2f}). It is better than the mean of the training labels{beside}."
            )
        return f"{where} this model is better than predicting the mean{beside}."
    words = {"worse": "worse than", "equal": "not better than"}
    than = f"{words.get(found or '', 'not clearly better than')} predicting the mean"
    within = "spearman_within_antigen"
    order = compared("train_mean", within)
    if order is not None and relation(order, within) == "better":
        return (
            f"{where} this model orders the antibodies of one antigen better than chance, but its "
            f"pKd values are {than}: use the order, not the values."
        )
    return f"{where} this model is {than}: do not use it to {use}."


def _beside(
    compared: Callable[[str, str], Interval | None], scores: Mapping[str, Mapping[str, Scores]]
) -> str:
    """Compare the head with the strongest baseline, if that is not the mean."""
    best = best_baseline(scores, "rmse")
    interval = None if best in (None, "train_mean") else compared(str(best), "rmse")
    if interval is None:
        return ""
    found = relation(interval, "rmse")
    words = {"better": "and better than", "worse": "but worse than", "equal": "and equals"}
    return f", {words.get(found or '', 'but not clearly better than')} the best baseline, {best}"
