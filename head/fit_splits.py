"""The splits of a fit, and the clusters of its sequences, each found no earlier than needed.

Training needs the clusters of the antigens, and some splits those of the antibodies. For the rest,
scores and counts of leaks, many antibodies are clustered in another process while the heads train.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from abag import cache_dir
from abag.core.messages import detail
from abag.head.closed_form.registry import CHECKS
from abag.head.data.labels import training_labels
from abag.head.splits.adapter_leaks import apply_adapter_policy
from abag.head.splits.clusters_beside import antibodies_clustered_meanwhile
from abag.head.splits.groups import PairGroups, with_antibody_clusters, with_antigen_clusters
from abag.head.splits.partition import Division, describe_splits, divide
from abag.head.splits.splits import TRAIN, Split

if TYPE_CHECKING:
    from contextlib import ExitStack

    from abag.head.data.labels import LabelledPairs
    from abag.head.model.config import FitConfig
    from abag.head.runs.run_folder import RunInputs


class FitSplits:
    """The splits of a fit, of which each can be trained on.

    Parameters
    ----------
    held : ExitStack
        Ends the process that clusters antibodies.

    Raises
    ------
    AbagError
        If the pairs cannot be split as asked for, or a part cannot be trained on.
    """

    def __init__(self, inputs: RunInputs, config: FitConfig, held: ExitStack) -> None:
        self._inputs, self._config, self._cache = inputs, config, cache_dir() / "clusters"
        self._wait = held.enter_context(
            antibodies_clustered_meanwhile(inputs.pairs, config, self._cache)
        )
        self._division = divide(self._groups())
        self._undescribed = self._checked(self._division)
        self.splits = self._undescribed if self._wait else self.described
        """Parts and groups; their descriptions may have to wait, see `described`."""

    @cached_property
    def described(self) -> list[Split]:
        """The splits with all that is said of them, which waits for all clusters."""
        described = [
            replace(split, description=whole.description | split.description)
            for split, whole in zip(self._undescribed, self._division.described(), strict=True)
        ]
        for line in describe_splits(described):
            detail(line)
        return described

    @cached_property
    def for_training(self) -> RunInputs:
        """The inputs with the clusters of the antigens."""
        return replace(
            self._inputs, pairs=with_antigen_clusters(self._inputs.pairs, self._groups())
        )

    @cached_property
    def clustered(self) -> RunInputs:
        """The inputs with all clusters, for which it waits."""
        inputs = self.for_training
        return replace(inputs, pairs=with_antibody_clusters(inputs.pairs, self._groups()))

    def _groups(self) -> PairGroups:
        return PairGroups(self._inputs.pairs, self._config, self._cache, self._wait)

    def _checked(self, division: Division) -> list[Split]:
        inputs, config, pairs = self._inputs, self._config, self._inputs.pairs
        splits = apply_adapter_policy(
            division.splits,
            pairs,
            [vectors.folder for vectors in inputs.vectors.values()],
            config,
            cache=self._cache,
            adapter_rows=config.adapter_rows,
            allow_leak=config.allow_adapter_leak,
        )
        for split in splits:
            check_training(pairs, split, config)  # raises before anything is written
        return splits


def check_training(pairs: LabelledPairs, split: Split, config: FitConfig) -> None:
    """Raise `NothingToLearn` or `DoesNotApply` if the training part does not suit the head."""
    rows = split.rows(TRAIN)
    training_labels(pairs, rows)
    if check := CHECKS.get(str(config.filled().head)):
        check(pairs.table.antibodies.chains, pairs.antibody[rows[pairs.censored[rows] == 0]])
