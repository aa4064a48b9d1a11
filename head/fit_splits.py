"""The splits of a fit, each of which can be trained on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from abag import cache_dir
from abag.core.messages import detail, say
from abag.head.closed_form.registry import CHECKS
from abag.head.data.labels import training_labels
from abag.head.splits.adapter_leaks import apply_adapter_policy
from abag.head.splits.groups import PairGroups, with_antibody_clusters, with_antigen_clusters
from abag.head.splits.split_methods import describe_splits, divide
from abag.head.splits.splits import TRAIN, Split

if TYPE_CHECKING:
    from abag.head.data.labels import LabelledPairs
    from abag.head.model.config import FitConfig
    from abag.head.runs.run_folder import RunInputs


def split_inputs(inputs: RunInputs, config: FitConfig) -> tuple[RunInputs, list[Split]]:
    """Return the inputs with the clusters of their sequences, and the splits of their pairs.

    Raises
    ------
    AbagError
        If the pairs cannot be split as asked for, or a part cannot be trained on.
    """
    groups = PairGroups(inputs.pairs, config, cache_dir() / "clusters")
    pairs = with_antigen_clusters(inputs.pairs, groups)
    pairs = with_antibody_clusters(pairs, groups)
    splits = apply_adapter_policy(
        divide(groups),
        groups,
        [vectors.folder for vectors in inputs.vectors.values()],
        adapter_rows=config.adapter_rows,
        allow_leak=config.allow_adapter_leak,
    )
    for split in splits:
        check_training(pairs, split, config)
    chosen, *rest = describe_splits(splits)
    (say if config.split == "auto" else detail)(chosen)
    for line in rest:
        detail(line)
    return replace(inputs, pairs=pairs), splits


def check_training(pairs: LabelledPairs, split: Split, config: FitConfig) -> None:
    """Raise `NothingToLearn` or `DoesNotApply` if the training part does not suit the head."""
    rows = split.rows(TRAIN)
    training_labels(pairs, rows)
    if check := CHECKS.get(str(config.filled().head)):
        check(pairs.table.antibodies.chains, pairs.antibody[rows])
