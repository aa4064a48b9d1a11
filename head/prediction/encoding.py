"""Encode the sequences that a store lacks, as the run encoded those that it was trained with.

Vectors of other encoders would be refused later, so every call names the fingerprints, the layers,
the adapters and the way of encoding long chains of the run. This module imports no encoder: the
caller provides the function that encodes a table, with the signature of `abag.embed_table`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from abag.core.files import is_partial
from abag.core.messages import counted, reporting, say
from abag.embed.store.store import NoSuchEncoder, open_store
from abag.head.data.features import LOGLIKS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from abag.embed.sequences.chains import Kind
    from abag.embed.store.store import Store
    from abag.head.data.features import FeatureColumns
    from abag.head.prediction.sequences import AnySequences, SequenceCounts
    from abag.head.prediction.specs import VectorSpec, ViewSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEncoders:
    """The encoders that a run was trained with, and the function that runs them."""

    antibody: VectorSpec
    antigen: VectorSpec
    embed: Callable[..., object] | None
    """Encodes a table into a store; None if nothing can be encoded."""
    adapters: Mapping[str, Path]
    """Folders of the encoders' adapters, by kind."""
    features: FeatureColumns | None
    """Columns that the run reads of each pair; some are likelihoods from the encoders."""

    @property
    def no_antigen(self) -> bool:
        """Whether the run was of antibodies alone."""
        return not self.antigen.views

    def spec(self, kind: Kind) -> VectorSpec:
        """Return the vectors needed of one kind."""
        return self.antibody if kind == "antibody" else self.antigen

    def missing(
        self, store: Store | None, kind: Kind, keys: NDArray[np.uint8]
    ) -> NDArray[np.bool_]:
        """Return which of N sequences, keys (N, 16), lack a vector of the run's encoder, (N,)."""
        if not self.spec(kind).views:
            return np.zeros(len(keys), np.bool_)
        if store is not None:
            with suppress(NoSuchEncoder):
                encoders = self.spec(kind).encoders
                lacking = [store.folder(kind, view.fingerprint).missing(keys) for view in encoders]
                return np.asarray(np.any(lacking, axis=0))
        return np.ones(len(keys), np.bool_)

    def encode(
        self,
        path: Path,
        antibodies: AnySequences,
        antigens: AnySequences,
        **options: Any,  # noqa: ANN401
    ) -> dict[Kind, SequenceCounts]:
        """Encode the sequences that a store lacks, if the predictor can, and count them.

        The options are those of `Predictor.predict`.
        """
        store = existing_store(path)
        new = []
        counts: dict[Kind, SequenceCounts] = {}
        for sequences in (antibodies, antigens):
            lacking = np.flatnonzero(self.missing(store, sequences.kind, sequences.keys)).tolist()
            new.append([sequences.chains[n] for n in lacking])
            counts[sequences.kind] = {
                "unique": len(sequences.keys),
                "reused": len(sequences.keys) - len(lacking),
                "encoded": len(lacking),
            }
        if self.embed is not None and any(new):
            # tables hold pairs: any antibody and antigen fill up the shorter list
            rows = max(map(len, new))
            sides = []
            for part, sequences in zip(new, (antibodies, antigens), strict=True):
                sides.append(part + sequences.chains[:1] * (rows - len(part)))
            table = pd.DataFrame(sides[0], columns=["heavy", "light"])
            if not self.no_antigen:
                table["antigen"] = ["|".join(chains) for chains in sides[1]]
            parts = []
            for kind, count in counts.items():
                if count["encoded"]:
                    parts.append(f"{counted(count['encoded'], kind)} with {self.spec(kind).name}")
            say(f"encoding {' and '.join(parts)} into {path}, which lacks them")
            given = {name: value for name, value in options.items() if value is not None}
            self._embed(table, path, given)
        return counts

    def _embed(self, table: pd.DataFrame, store: Path, options: Mapping[str, Any]) -> None:
        assert self.embed is not None
        if self.no_antigen:
            self._embed_antibodies(table, store, options)
            return
        sides = self.antibody.encoders, self.antigen.encoders
        caller_options = dict(options)
        with reporting(details=False):  # which encoders, and how many sequences, has been said
            # each call takes one encoder per side; what is stored already is not encoded again
            for n in range(max(map(len, sides))):
                antibody, antigen = (encoders[min(n, len(encoders) - 1)] for encoders in sides)
                options_of_run: dict[str, Any] = {
                    "antibody_encoder": antibody.origin,
                    "antigen_encoder": antigen.origin,
                    # of "window-1022", window; "whole" is of an encoder without a longest chain
                    "long_antigens": antigen.long.partition("-")[0].replace("whole", "window"),
                }
                if layers := self._layers((antibody, antigen), existing_store(store)):
                    options_of_run["layers"] = layers
                if n == 0:  # places of encoders and adapters are those of the first views
                    options_of_run |= {
                        f"{kind}_adapter": path for kind, path in self.adapters.items()
                    }
                    self._begin_logliks(table, store, options_of_run | caller_options)
                else:
                    caller_options.pop("antibody_encoder", None)
                    caller_options.pop("antigen_encoder", None)
                self.embed(
                    table,
                    store,
                    antibody_fingerprint=antibody.fingerprint,
                    antigen_fingerprint=antigen.fingerprint,
                    **options_of_run | caller_options,
                )

    def _begin_logliks(self, table: pd.DataFrame, store: Path, options: Mapping[str, Any]) -> None:
        """Encode the sides whose likelihoods the run reads, where a store has no vectors yet."""
        assert self.embed is not None
        for kind in self._without_likelihoods(existing_store(store)):
            other = "antigen" if kind == "antibody" else "antibody"
            options_of_side = dict(options)
            options_of_side.pop(f"{other}_adapter", None)
            self.embed(
                table,
                store,
                kind=kind,
                loglik=True,
                antibody_fingerprint=self.antibody.fingerprint,
                antigen_fingerprint=self.antigen.fingerprint,
                **options_of_side,
            )

    def _without_likelihoods(self, store: Store | None) -> list[Kind]:
        """Return the kinds whose likelihoods the run reads, and that a store has no folder of."""
        numbers = () if self.features is None else self.features.numbers
        begun = _fingerprints(store)
        kinds = [LOGLIKS[column.name] for column in numbers if column.head]
        return [kind for kind in kinds if self.spec(kind).fingerprint not in begun]

    def _embed_antibodies(
        self, table: pd.DataFrame, store: Path, options: Mapping[str, Any]
    ) -> None:
        """Encode antibodies alone, with each encoder of the run."""
        assert self.embed is not None
        caller_options = dict(options)
        caller_options.pop("antigen_encoder", None)
        with reporting(details=False):
            for n, antibody in enumerate(self.antibody.encoders):
                options_of_run: dict[str, Any] = {
                    "antibody_encoder": antibody.origin,
                    "no_antigen": True,
                }
                if layers := self._layers((antibody,), existing_store(store)):
                    options_of_run["layers"] = layers
                if n == 0 and self._without_likelihoods(existing_store(store)):
                    options_of_run["loglik"] = True
                if n == 0 and "antibody" in self.adapters:
                    options_of_run["antibody_adapter"] = self.adapters["antibody"]
                elif n:
                    caller_options.pop("antibody_encoder", None)
                self.embed(
                    table,
                    store,
                    antibody_fingerprint=antibody.fingerprint,
                    **options_of_run | caller_options,
                )

    def _layers(self, encoders: Sequence[ViewSpec], store: Store | None) -> tuple[int, ...]:
        """Return the layers to encode for folders of these encoders that the store lacks."""
        # a folder keeps the layers that it was made with
        new = {spec.fingerprint for spec in encoders} - _fingerprints(store)
        layers = set()
        for view in (*self.antibody.views, *self.antigen.views):
            _, _, layer = view.pooling.partition("@")
            if layer and view.fingerprint in new:
                layers.add(int(layer))
        return tuple(sorted(layers))


def _fingerprints(store: Store | None) -> set[str]:
    """Return the fingerprints of the encoders of which a store has a folder."""
    if store is None:
        return set()
    folders = [*store.folders("antibody"), *store.folders("antigen")]
    return {folder.fingerprint for folder in folders}


def existing_store(path: Path) -> Store | None:
    """Open a store; None if there is nothing but what a killed process leaves."""
    empty = not path.exists() or (path.is_dir() and all(map(is_partial, path.iterdir())))
    return None if empty else open_store(path)
