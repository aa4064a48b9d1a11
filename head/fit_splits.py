"""The splits of a fit, and the clusters of its sequences, each waited for where it is needed.

Training needs the clusters of the antigens, and some splits those of the antibodies. For the rest,
scores and counts of leaks, many antibodies are clustered in another process while the heads train.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from threading import Event
from typing import TYPE_CHECKING

from abag import cache_dir
from abag.core.messages import detail, say
from abag.core.threads import meanwhile
from abag.head.closed_form.registry import CHECKS
from abag.head.data.labels import training_labels
from abag.head.splits.adapter_leaks import apply_adapter_policy
from abag.head.splits.clusters_beside import antibodies_clustered_meanwhile
from abag.head.splits.groups import PairGroups, with_antibody_clusters, with_antigen_clusters
from abag.head.splits.partition import Division, describe_splits, divide
from abag.head.splits.splits import TRAIN, Split

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from abag.embed.sequences.chains import Kind
    from abag.head.data.labels import LabelledPairs
    from abag.head.model.config import FitConfig
    from abag.head.runs.run_folder import RunInputs


class FitSplits:
    """The splits of a fit, of which each can be trained on.

    The search for clusters begins at once, beside what the caller does.

    Parameters
    ----------
    held : ExitStack
        Ends the search.
    """

    def __init__(self, inputs: RunInputs, config: FitConfig, held: ExitStack) -> None:
        self._inputs, self._config = inputs, config
        cache, antigens_found = cache_dir() / "clusters", Event()
        groups = PairGroups(inputs.pairs, config, cache)
        wait: dict[Kind, Callable[[], object]] = {}

        def cluster_antigens() -> None:
            try:
                groups.of_method("antigen")
            finally:
                antigens_found.set()

        beside = antibodies_clustered_meanwhile(inputs.pairs, config, cache, antigens_found)
        if (wait_for_antibodies := held.enter_context(beside)) is not None:
            wait["antibody"] = wait_for_antibodies
        if groups.are_clustered("antigen"):
            wait["antigen"] = held.enter_context(meanwhile(cluster_antigens))
        else:
            antigens_found.set()
        # what the thread finds is found in both: they share it
        self._groups = replace(groups, wait=wait)

    @cached_property
    def splits(self) -> list[Split]:
        """Parts and groups; descriptions may have to wait, see `described`.

        Raises
        ------
        AbagError
            If the pairs cannot be split as asked for, or a part cannot be trained on.
        """
        return self._undescribed if "antibody" in self._groups.wait else self.described

    @cached_property
    def described(self) -> list[Split]:
        """The splits with all that is said of them, which waits for all clusters."""
        described = [
            replace(split, description=whole.description | split.description)
            for split, whole in zip(self._undescribed, self._division.described(), strict=True)
        ]
        chosen, *rest = describe_splits(described)
        (say if self._config.split == "auto" else detail)(chosen)
        for line in rest:
            detail(line)
        return described

    @cached_property
    def for_training(self) -> RunInputs:
        """The inputs with the clusters of the antigens."""
        return replace(self._inputs, pairs=with_antigen_clusters(self._inputs.pairs, self._groups))

    @cached_property
    def clustered(self) -> RunInputs:
        """The inputs with all clusters, for which it waits."""
        inputs = self.for_training
        return replace(inputs, pairs=with_antibody_clusters(inputs.pairs, self._groups))

    @cached_property
    def _division(self) -> Division:
        return divide(self._groups)

    @cached_property
    def _undescribed(self) -> list[Split]:
        inputs, config = self._inputs, self._config
        splits = apply_adapter_policy(
            self._division.splits,
            self._groups,
            [vectors.folder for vectors in inputs.vectors.values()],
            adapter_rows=config.adapter_rows,
            allow_leak=config.allow_adapter_leak,
        )
        for split in splits:
            check_training(inputs.pairs, split, config)  # raises before anything is written
        return splits


def check_training(pairs: LabelledPairs, split: Split, config: FitConfig) -> None:
    """Raise `NothingToLearn` or `DoesNotApply` if the training part does not suit the head."""
    rows = split.rows(TRAIN)
    training_labels(pairs, rows)
    if check := CHECKS.get(str(config.filled().head)):
        check(pairs.table.antibodies.chains, pairs.antibody[rows])
