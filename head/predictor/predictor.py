"""Predictors: trained heads that predict the affinity of antibodies and antigens.

A `Predictor` is the parts that a fit trained (`parts`), with what a fit measured of them: weights
and calibration of every regime, and the training sequences, by which what is new about a pair is
recognised. `folder` reads and writes it. It stores the fingerprints of the encoders that it was
trained with and accepts their vectors only. What a store lacks is encoded as the run encoded it, by
a function of the caller (`abag.load_predictor`): this module imports no encoder.

From top to bottom: the sequences of a table that is scored, each once; the records of chains and
vectors, as in predictor.json; encoding what is missing; the predictor, and the scoring of pairs.

N sequences, P pairs or rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import Bools, Floats
from abag.core.errors import (
    ColumnError,
    DamagedFile,
    MissingVectors,
    PredictionError,
    SequenceError,
    StoreError,
)
from abag.core.files import is_partial
from abag.core.messages import counted, reporting, say
from abag.core.options import user_path
from abag.core.python_surface import as_html, names_keywords, shorten
from abag.embed.store.store import NoSuchEncoder, Store, name_encoders, open_store
from abag.embed.tables.chains import KINDS, NO_ANTIGEN, Chains, Kind
from abag.embed.tables.chains import antibody as antibody_chains
from abag.embed.tables.chains import antigen as antigen_chains
from abag.embed.tables.columns import column_option, quote_some
from abag.embed.tables.numbering import chain_types, cut_to_domains, place_chains
from abag.embed.tables.pairs import Sequences, table_of
from abag.head.labels.column import RunLayout
from abag.head.labels.features import (
    LOGLIKS,
    FeatureColumns,
    ReadFeatures,
    read_features,
    read_logliks,
)
from abag.head.labels.headers import (
    PREDICT_COLUMNS,
    PROBABILITY,
    PROBABILITY_COLUMNS,
    Quantity,
)
from abag.head.models.pair_vectors import PairVectors, SideVectors, StoredVectors
from abag.head.regimes.relations import NONE
from abag.head.regimes.sides import KnownSequences, TrainedChains
from abag.head.regimes.splits import (
    NEW,
    REGIMES,
    FoundRegimes,
    NewSequences,
    Shown,
    applicable,
    find_regimes,
    words_of,
)

if TYPE_CHECKING:
    from abag.head.predictor.parts import Mixture, Parts, UsedRegime


WEIGHTS = "weights.safetensors"
RECORD = "predictor.json"
SCORE_COLUMNS = PREDICT_COLUMNS
SAME_PREDICTION_PKD = 1e-3
"""Predictions of one pair that differ by no more are one: products of matrices round each row of a
table in their own way."""


@dataclass(frozen=True, slots=True)
class KnownNoise:
    """Sequences of one kind whose errors are smaller or larger than those of others."""

    keys: NDArray[np.uint8]
    """Shape (T, 16)."""
    factor: NDArray[np.float64]
    """Of the variance of errors, (T,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSpec:
    """One of the vectors that a predictor reads of each sequence of one kind."""

    name: str
    origin: str
    """Alias, hub name or folder that the encoder was loaded from."""
    fingerprint: str
    long: str
    """How long chains were encoded, as in encoder.json."""
    random_weights: bool
    pooling: str
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorSpec:
    """The vectors that a predictor needs of one kind of sequence."""

    views: tuple[ViewSpec, ...]
    """One or more, whose vectors are joined; none of antigens in a run of antibodies alone."""
    training_sequences: int

    @property
    def encoders(self) -> list[ViewSpec]:
        """The first view of each distinct encoder, in the order of the views."""
        first: dict[str, ViewSpec] = {}
        for view in self.views:
            first.setdefault(view.fingerprint, view)
        return list(first.values())

    @property
    def name(self) -> str:
        """Names of the encoders."""
        return " + ".join(view.name for view in self.encoders) or "none"

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the first encoder; empty without one."""
        return self.views[0].fingerprint if self.views else ""

    @property
    def random_weights(self) -> bool:
        """Whether an encoder has random weights, with which scores mean nothing."""
        return any(view.random_weights for view in self.views)

    @property
    def pooling(self) -> str:
        """Poolings of the views, as messages list them."""
        return ", ".join(view.pooling for view in self.views)

    @property
    def width(self) -> int:
        """Numbers of a vector; that of a sequence that nobody encodes is one 0."""
        return sum(view.width for view in self.views) or 1


def existing_store(path: Path) -> Store | None:
    """Open a store; None if there is nothing but what a killed process leaves."""
    empty = not path.exists() or (path.is_dir() and all(map(is_partial, path.iterdir())))
    return None if empty else open_store(path)


@dataclass(frozen=True, slots=True, repr=False)
class Predictor:
    """Models whose weighted mean is the prediction, and where their vectors usually are."""

    parts: Parts
    regimes: Mapping[str, UsedRegime]
    """Those that the run has measured, by name."""
    antibody: VectorSpec
    antigen: VectorSpec
    seen: Mapping[Kind, KnownSequences]
    """The training sequences, which tell what of a pair is new."""
    chains: TrainedChains
    """Chains that the training antibodies have."""
    label_sd: float
    """Standard deviation of the exact labels of the run, in pKd: the least sigma of pairs that no
    measured regime covers."""
    layout: RunLayout
    """What the columns of the run's table are, and how it was read."""
    noise: Mapping[Kind, KnownNoise] = field(default_factory=dict)
    category_noise: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Factors of the variance of errors by value of a category, by column."""
    store: Path | None = None
    """The store of the run, if it is known, exists, and is near the run."""
    no_store: str = "the store that the run was trained from is not known"
    """Why `store` is None."""
    embed: Callable[..., object] | None = None
    adapters: Mapping[str, Path] = field(default_factory=dict)
    """Folders of the encoders' adapters, by kind."""
    pairs: Path | None = None
    """File of the training pairs, if the run is known."""
    features: FeatureColumns | None = None
    """Columns that the run reads of each pair, beside its sequences."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of sequences that the run has."""
        return tuple(kind for kind in KINDS if self.spec(kind).views)

    @property
    def quantity(self) -> Quantity:
        """What is predicted."""
        return self.layout.label.quantity

    @property
    def digits(self) -> int:
        """Digits after the point of predictions in text files."""
        return self.quantity.digits(self.label_sd)

    @names_keywords
    def predict(
        self,
        heavy: Iterable[str] | str | None = None,
        light: Iterable[str] | str | None = None,
        antigen: Iterable[str] | str = "",
        *,
        features: pd.DataFrame | Mapping[str, Sequence[Any]] | None = None,
        store: Path | str | None = None,
        antibody_encoder: str | None = None,
        antigen_encoder: str | None = None,
        device: str = "auto",
        batch_tokens: int | None = None,
        progress: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> pd.DataFrame:
        """Predict the affinity of pairs of an antibody and an antigen.

        Parameters
        ----------
        heavy, light, antigen : sequence of str, or str
            One sequence per pair, or one for all pairs; either antibody chain can be left out.
            The chains of an antigen are joined by ``|``. Without one, the antigen of a run that has
            only one is taken. A run of antibodies alone takes none.
        features : DataFrame or mapping of names to values, optional
            The columns that the run reads beside sequences (`Predictor.features`), one row per
            pair; others are ignored.
        store : path, optional
            Holds the vectors, and receives those of new sequences. By default the store of the
            run, or a temporary one if that does not exist.
        antibody_encoder, antigen_encoder : str, optional
            Place of the run's encoder on this machine, for new sequences.
        device, batch_tokens, progress
            As for `abag.embed_table`, for new sequences.
        say : callable, optional
            Receives each message; by default messages go to stderr.

        Returns
        -------
        DataFrame
            One row per pair, with ``pkd_predicted``, ``sigma``, ``sigma_model`` (the part of sigma
            that is no noise; all in pKd), ``regime`` (what is new about the pair), ``far`` (bool:
            no regime that was measured covers the pair, or it is further from training than 95 %
            of the tested ones), ``why_far``, ``nearest`` (names of the nearest training sequences,
            or the rows that have them first) and ``distance`` (residues that differ from these;
            missing where a sequence has no relative in training). A run of another quantity than an
            affinity gives ``predicted`` in place of ``pkd_predicted``, all in its unit. Its index
            is that of the Series that were given.

        Raises
        ------
        SequenceError
            If the lists differ in length, Series have different indexes, or a whole DataFrame is
            given.
        ColumnError
            If the run reads features, and one is not given or is invalid.
        MissingVectors
            If sequences are not stored and cannot be encoded.
        PredictionError
            If all antibodies lack a chain that nearly all training antibodies have; where only
            some do, these are far.
        AbagError
            If a sequence is invalid, or an encoder is not the one of the run.
        """
        is_alone = "antigen" not in self.kinds
        with reporting(say):
            antigen = self._antigen_or_own(antigen)
        columns, index = _paired(features, heavy=heavy, light=light, antigen=antigen)
        heavies, lights, antigens = columns
        if is_alone and any(antigens):
            msg = (
                "predict: an antigen is given, but the run is of antibodies alone; expected none. "
                "Leave it out."
            )
            raise SequenceError(msg)
        antibodies = [antibody_chains(h, x) for h, x in zip(heavies, lights, strict=True)]
        if self.layout.chains == "auto":
            for n, (h, x) in enumerate(antibodies):
                types = (chain_types(h), chain_types(x))
                antibodies[n] = place_chains((h, x), types, "auto")[0]
        if self.layout.antibody_region == "fv":
            antibodies = [cut_to_domains(chains)[0] for chains in antibodies]
        read = self._given_features(features, len(antibodies))
        left = Sequences.of("antibody", antibodies)
        self.refuse_without_chains(left, "predict", "Give it, too.")
        parsed = [NO_ANTIGEN if is_alone else antigen_chains(text) for text in antigens]
        right = Sequences.of("antigen", parsed)
        with reporting(say), self._working_store(store) as path:
            self.encode(
                path,
                left,
                right,
                antibody_encoder=antibody_encoder,
                antigen_encoder=antigen_encoder,
                device=device,
                batch_tokens=batch_tokens,
                progress=progress,
            )
            scores = Scorer(self, open_store(path), left, right).score_rows(read)
        scores = self.quantity.outward(scores)
        return scores if index is None else scores.set_axis(index)

    def _antigen_or_own(self, antigen: Iterable[str] | str) -> Iterable[str] | str:
        """Return what is given, or the only antigen of the run if nothing is."""
        if not self.layout.antigen or not isinstance(antigen, str) or antigen:
            return antigen
        say("the antigen of the run is taken")
        return self.layout.antigen

    def _given_features(
        self, features: pd.DataFrame | Mapping[str, Sequence[Any]] | None, pairs: int
    ) -> ReadFeatures | None:
        """Read features that were given from Python, for P pairs."""
        if self.features is None and features is not None:
            msg = (
                "predict: features are given, but the run reads none; expected sequences alone. "
                "Leave them out."
            )
            raise ColumnError(msg)
        if self.features is None or features is None:
            return None
        try:
            frame = pd.DataFrame(features)
        except ValueError as error:
            msg = f"predict: features: {error}; expected one value per pair and column. Correct it."
            raise ColumnError(msg) from error
        if len(frame) != pairs:
            msg = (
                f"predict: features have {counted(len(frame), 'row')} for {counted(pairs, 'pair')};"
                " expected one row per pair. Correct them."
            )
            raise ColumnError(msg)
        return read_features(self.features, frame, "predict: features")

    def refuse_without_features(self, where: str, advice: str) -> None:
        """Raise `ColumnError` if the run reads features, which this way of scoring cannot give."""
        if self.features is not None and self.features.in_tables:
            listed = quote_some([*self.features.in_tables])
            expected = "expected these of each pair"
            msg = f"{where}: the run reads the columns {listed}; {expected}. {advice}"
            raise ColumnError(msg)

    def refuse_without_chains(self, antibodies: Sequences, where: str, advice: str = "") -> None:
        """Refuse antibodies if all lack a chain that nearly all training antibodies have.

        Raises
        ------
        PredictionError
            With `where` they are, and the `advice`, by default that on a column of a table.
        """
        role = self.chains.lacking(antibodies.chains)
        if not role or not (self.why_far_by_chains(antibodies) != "").any():
            return
        option = column_option(role, "NAME")
        advice = advice or f"Add a column of {role} chains, or name it with {option}."
        msg = (
            f"{where}: no antibody has a {role} chain, which {self.chains.owners(role)} have; "
            f"expected the chains of training. {advice}"
        )
        raise PredictionError(msg)

    def why_far_by_chains(self, antibodies: Sequences) -> NDArray[np.object_]:
        """Say of N antibodies why their chains make them far, (N,); empty if they do not."""
        why = self.chains.why_far(antibodies.chains)
        trained = {key.tobytes() for key in self.seen["antibody"].keys}
        for n in np.flatnonzero(why != "").tolist():
            if antibodies.keys[n].tobytes() in trained:  # one of the few that are so in training
                why[n] = ""
        return why

    def score(
        self,
        vectors: PairVectors,
        antibody: NewSequences,
        antigen: NewSequences,
        factor: NDArray[np.float64] | float = 1.0,
        why_far: NDArray[np.object_] | None = None,
    ) -> ScoredPairs:
        """Predict P pairs, each as a pair of its regime.

        The columns are those of `predict`. All that is scored is scored here, given what is new
        about both sequences of each pair;
        `factor`, (P,), is that of `noise_factor`, and `why_far`, (P,), that of their features.
        """
        regimes = find_regimes(antibody, antigen, self.shown, self.kinds).beside(why_far)
        mixtures = self.mixtures(regimes)
        weighed = {name for mixture, _ in mixtures for name in mixture.weights}
        varying = self.varying(mixture for mixture, _ in mixtures if mixture.reads_variance)
        with np.errstate(all="ignore"):  # checked here
            pairs, of_pair = vectors.distinct()  # a table may have each many times
            of_parts, variances = self.parts.predict_with_variance(pairs, weighed, varying)
            parts = {part: predicted[of_pair] for part, predicted in of_parts.items()}
            pkd = self.mix(parts, regimes)
            sigma = np.zeros(len(pkd))
            of_model = np.zeros(len(pkd))
            for mixture, rows in mixtures:
                variance = mixture.variance(variances, len(pairs))[of_pair]
                sigma[rows] = mixture.sigma(pkd, variance, regimes.distance, factor)[rows]
                of_model[rows] = mixture.sigma_model(pkd, variance, regimes.distance)[rows]
            if not self.quantity.classes:
                # errors were not measured so far away: as large as those of the mean, or larger
                raised = np.where(regimes.is_far, np.maximum(sigma, self.label_sd), sigma)
                of_model = np.sqrt(np.square(of_model) + np.square(raised) - np.square(sigma))
                sigma = raised
                of_model = np.minimum(of_model, sigma)
        if not (np.isfinite(pkd).all() and np.isfinite(sigma).all()):
            msg = (
                "the predictor gives infinity or NaN; expected finite predictions. Train it again."
            )
            raise DamagedFile(msg)
        values = (
            pkd,
            sigma,
            of_model,
            regimes.name,
            regimes.is_far,
            regimes.why_far,
            *self._nearest(antibody, antigen),
        )
        scores = pd.DataFrame(dict(zip(SCORE_COLUMNS, values, strict=True)))
        if self.quantity.classes:
            scores = scores.assign(**self._probabilities(pkd, mixtures))
        return ScoredPairs(scores, regimes, vectors, parts)

    def mixtures(self, regimes: FoundRegimes) -> list[tuple[Mixture, Bools]]:
        """Return the mixtures that predict P pairs, and which pairs each predicts, (P,)."""
        used = regimes.used
        return [(self.regimes[name].mixture, used == name) for name in {*used.tolist()}]

    def varying(self, mixtures: Iterable[Mixture]) -> set[str]:
        """Return the parts whose variance counts in one of these mixtures."""
        with_variance = self.parts.with_variance
        return {name for mixture in mixtures for name in mixture.varying(with_variance)}

    def mix(self, parts: Mapping[str, Floats], regimes: FoundRegimes) -> Floats:
        """Mix what the parts predict of P pairs, (P,) each in pKd, by the regime of each pair."""
        pkd = np.zeros(len(regimes.used))
        for mixture, rows in self.mixtures(regimes):
            pkd[rows] = mixture.pkd({part: values[rows] for part, values in parts.items()})
            far = rows & regimes.is_far
            pkd[far] = mixture.pulled(pkd[far])
        return pkd

    def _probabilities(
        self, expected: Floats, mixtures: Sequence[tuple[Mixture, Bools]]
    ) -> dict[str, Floats]:
        """Return the probability of the highest class of P pairs, and its interval, by column.

        `expected`, (P,), are predictions of `mixtures`.
        """
        columns = {name: np.zeros(len(expected)) for name in PROBABILITY_COLUMNS}
        for mixture, rows in mixtures:
            link = mixture.link
            assert link is not None
            values = (link.top(expected[rows]), *link.interval(expected[rows]))
            for column, of_rows in zip(columns.values(), values, strict=True):
                column[rows] = of_rows
        if self.quantity.is_binary:  # the prediction itself
            del columns[PROBABILITY]
        return columns

    def _nearest(
        self, antibody: NewSequences, antigen: NewSequences
    ) -> tuple[NDArray[np.object_], pd.arrays.IntegerArray]:
        """Name the nearest training sequences of P pairs, (P,), and count the differences, (P,)."""
        sides = np.stack([antibody.nearest, antigen.nearest])
        # each name is made once, however many pairs have it
        distinct_2U, of_pair = np.unique(sides, axis=1, return_inverse=True)
        names = []
        for numbers in distinct_2U.T.tolist():
            known = []
            for kind, number in zip(KINDS, numbers, strict=True):
                names_of_kind = self.seen[kind].names
                if names_of_kind is not None and kind in self.kinds:
                    known.append("new" if number == NONE else names_of_kind[number])
            names.append(" + ".join(known) if {*known} != {"new"} else "")
        is_new = (antibody.level == NEW) | (antigen.level == NEW)
        distance = pd.array(antibody.distance + antigen.distance, "Int64")
        distance[is_new] = pd.NA
        return np.array(names, object)[of_pair.reshape(-1)], distance

    def verdict(self, regime: str) -> str:
        """Say what the run has shown for pairs of a regime, or that it has measured none such."""
        measured = self.regimes.get(regime)
        if measured is not None:
            return measured.verdict
        covers, used = self.applied(regime)
        if covers:
            return f"{self.words(regime)}, predicted as {self.regimes[used].verdict}"
        return f"{self.words(regime)}: not measured by the run"

    @property
    def shown(self) -> dict[str, Shown]:
        """What the run has shown of each regime that it has measured."""
        return {name: Shown(used.reach, used.error) for name, used in self.regimes.items()}

    def applied(self, regime: str) -> tuple[bool, str]:
        """Return whether a measured regime covers another one, and the measured one to use."""
        return applicable(REGIMES[regime], self.shown)

    def noise_factor(self, kind: Kind, keys: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return the factor of the variance of errors of N sequences, keys (N, 16), (N,)."""
        noise = self.noise.get(kind)
        if noise is None:
            return np.ones(len(keys))
        factors = dict(zip((key.tobytes() for key in noise.keys), noise.factor, strict=True))
        return np.array([factors.get(key.tobytes(), 1.0) for key in keys], np.float64)

    def say_verdicts(self, counts: Mapping[str, int], noun: str) -> dict[str, str]:
        """Say what the run has shown for the regimes that occur, most frequent first; return it."""
        for name, rows in sorted(counts.items(), key=lambda item: -item[1]):
            say(f"{counted(rows, noun)}: {self.verdict(name)}")
        return {name: self.regimes[name].verdict for name in counts if name in self.regimes}

    def words(self, regime: str) -> str:
        """Say what is new about the pairs of a regime."""
        return words_of(regime, self.kinds)

    def __repr__(self) -> str:
        models = ", ".join(self.parts.models)
        sides = []
        for kind in self.kinds:
            spec = self.spec(kind)
            sides.append(
                f"{kind}: {spec.name} ({spec.fingerprint[:8]}), {spec.pooling}, "
                f"{spec.training_sequences:,} sequences in training"
            )
        if self.kinds == ("antibody",):
            sides.append("antibodies alone")
        verdicts = [regime.verdict for regime in self.regimes.values()]
        title = "Predictor" if self.quantity.affinity else f"Predictor of {self.quantity}"
        return shorten([f"{title}: {models}", *sides, *verdicts, f"store: {self.store}"])

    def _repr_html_(self) -> str:
        return as_html(repr(self))

    def spec(self, kind: Kind) -> VectorSpec:
        """Return the vectors needed of one kind."""
        return self.antibody if kind == "antibody" else self.antigen

    def missing(
        self, store: Store | None, kind: Kind, keys: NDArray[np.uint8]
    ) -> NDArray[np.bool_]:
        """Return which of N sequences, keys (N, 16), lack a vector of the run's encoder, (N,)."""
        if kind not in self.kinds:
            return np.zeros(len(keys), np.bool_)
        if store is not None:
            with suppress(NoSuchEncoder):
                encoders = self.spec(kind).encoders
                lacking = [store.folder(kind, view.fingerprint).missing(keys) for view in encoders]
                return np.asarray(np.any(lacking, axis=0))
        return np.ones(len(keys), np.bool_)

    def read(self, store: Store, kind: Kind, keys: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Read vectors of the run's encoder, (N, D), by keys of shape (N, 16)."""
        if kind not in self.kinds:
            return StoredVectors.absent(len(keys)).x_ND
        spec = self.spec(kind)
        missing = int(self.missing(store, kind, keys).sum())
        if missing:
            stored = name_encoders(store.folders(kind))
            msg = (
                f"{store.path}: {missing} of {len(keys)} {kind} sequences have no vector from "
                f"{spec.name} ({spec.fingerprint[:8]}); the store has vectors of {stored}. Run "
                "abag embed on these sequences into this store first, with that encoder."
            )
            raise MissingVectors(msg)
        vectors = [
            store.folder(kind, view.fingerprint).read(keys, view.pooling) for view in spec.views
        ]
        for view, x_ND in zip(spec.views, vectors, strict=True):
            if x_ND.shape[1] != view.width:
                msg = (
                    f"{store.path}: the {view.pooling} vectors of {view.name} "
                    f"({view.fingerprint[:8]}) have {x_ND.shape[1]} numbers; the run was trained "
                    f"with {view.width}. Give the --store of the run, or a new one."
                )
                raise StoreError(msg)
        return vectors[0] if len(vectors) == 1 else np.concatenate(vectors, axis=1)

    def encode(
        self,
        path: Path,
        *sides: Sequences,
        **options: Any,  # noqa: ANN401
    ) -> None:
        """Encode the sequences that a store lacks, if the predictor can.

        The options are those of `Predictor.predict`.
        """
        store = existing_store(path)
        new: dict[Kind, list[Chains]] = {}
        for sequences in sides:
            lacking = np.flatnonzero(self.missing(store, sequences.kind, sequences.keys)).tolist()
            if lacking:
                new[sequences.kind] = [sequences.chains[n] for n in lacking]
        if self.embed is None or not new:
            return
        parts = []
        for kind, chains in new.items():
            parts.append(f"{counted(len(chains), kind)} with {self.spec(kind).name}")
        say(f"encoding {' and '.join(parts)} into {path}, which lacks them")
        given = {name: value for name, value in options.items() if value is not None}
        with reporting(details=False):  # which encoders, and how many sequences, has been said
            for kind, chains in new.items():
                self._embed(kind, chains, path, given)

    def _embed(
        self, kind: Kind, chains: Sequence[Chains], store: Path, given: Mapping[str, Any]
    ) -> None:
        """Encode sequences of one kind with each encoder of the run, as the run encoded its own."""
        assert self.embed is not None
        of_all = {name: given[name] for name in given if not name.endswith("_encoder")}
        for number, encoder in enumerate(self.spec(kind).encoders):
            options: dict[str, Any] = {"kind": kind, "fingerprints": {kind: encoder.fingerprint}}
            options[f"{kind}_encoder"] = encoder.origin
            if number == 0:  # places of encoders and adapters are those of the first views
                options[f"{kind}_encoder"] = given.get(f"{kind}_encoder", encoder.origin)
                options[f"{kind}_adapter"] = self.adapters.get(kind)
            if kind == "antigen":
                options["long_antigens"] = encoder.long
            opened = existing_store(store)
            folders = [] if opened is None else opened.folders(kind)
            if encoder.fingerprint not in {folder.fingerprint for folder in folders}:
                # a folder keeps the layers and likelihoods that it was made with
                options["layers"] = self._layers(kind, encoder.fingerprint) or None
                options["loglik"] = (number == 0 and self._reads_likelihoods(kind)) or None
            self.embed(table_of({kind: chains}), store, **options, **of_all)

    def _layers(self, kind: Kind, fingerprint: str) -> tuple[int, ...]:
        """Return the layers of an encoder that the run reads."""
        views = [view for view in self.spec(kind).views if view.fingerprint == fingerprint]
        layers = [view.pooling.partition("@")[2] for view in views]
        return tuple(sorted({int(layer) for layer in layers if layer}))

    def _reads_likelihoods(self, kind: Kind) -> bool:
        columns = () if self.features is None else self.features.numbers
        return any(column.head and LOGLIKS[column.name] == kind for column in columns)

    def resolve_store(self, given: Path | str | None) -> Path:
        """Return the given store, or else the store of the run."""
        if given is not None:
            return user_path(given, "--store")
        if self.store is None:
            msg = (
                f"--store: not given, and {self.no_store}; expected the store of the run, or "
                "another one. Give --store DIR, which may be a new one."
            )
            raise MissingVectors(msg)
        return self.store

    @contextmanager
    def _working_store(self, given: Path | str | None) -> Iterator[Path]:
        """Yield the store to use; a temporary one if none is known and sequences can be encoded."""
        if given is not None or self.store is not None or self.embed is None:
            yield self.resolve_store(given)
            return
        with tempfile.TemporaryDirectory(prefix="abag-predict-") as folder:
            yield Path(folder) / "store"


class ScoredPairs(NamedTuple):
    """Scores of P pairs, and what they were computed from."""

    scores: pd.DataFrame
    """With the columns of `Predictor.predict`."""
    regimes: FoundRegimes
    vectors: PairVectors
    parts: Mapping[str, Floats]
    """What the parts that have weight in one of these regimes predict, (P,) each."""


class Scorer:
    """Scores pairs of stored sequences; only vectors of pairs scored together are in memory."""

    def __init__(
        self, predictor: Predictor, store: Store, antibodies: Sequences, antigens: Sequences
    ) -> None:
        self._predictor = predictor
        self._store = store
        self._sides = antibodies, antigens
        self._new = tuple(
            predictor.seen[sequences.kind].compare(sequences.chains) for sequences in self._sides
        )
        """What is new about the distinct antibodies, (N,), and antigens, (M,)."""
        self._factors = [
            predictor.noise_factor(sequences.kind, sequences.keys) for sequences in self._sides
        ]
        self._why_far_N = predictor.why_far_by_chains(antibodies)

    def score(
        self, *index: NDArray[np.integer], features: ReadFeatures | None = None
    ) -> ScoredPairs:
        """Score P pairs, given by indices, (P,) each.

        `features` are those of the P pairs, if the run reads any.
        """
        antibody, antigen = index
        pairs, features = self.read(*index, features=features)
        factor = self._factors[0][antibody] * self._factors[1][antigen]
        why_far = self._why_far_N[antibody]
        if features is not None:
            factor = factor * features.factor(self._predictor.category_noise)
            why_far = np.where(why_far == "", features.why_far, why_far)
        of_antibodies, of_antigens = self._new
        return self._predictor.score(
            pairs,
            of_antibodies.take(antibody),
            of_antigens.take(antigen),
            factor=factor,
            why_far=why_far,
        )

    def read(
        self, *index: NDArray[np.integer], features: ReadFeatures | None = None
    ) -> tuple[PairVectors, ReadFeatures | None]:
        """Read what P pairs, (P,) each, are predicted from; features with those of the store."""
        features = self._completed(features, *index)
        vectors = {}
        for side, of_pair in zip(self._sides, index, strict=True):
            vectors[side.kind] = self._read(side, of_pair)
        return PairVectors(vectors, None if features is None else features.values), features

    def _completed(
        self, features: ReadFeatures | None, *index: NDArray[np.integer]
    ) -> ReadFeatures | None:
        """Return the features of P pairs, with likelihoods from the store; None if none are read.

        Raises `ColumnError` if the run reads columns of tables, and none are given.
        """
        columns = self._predictor.features
        if columns is None:
            return None
        if features is None:
            self._predictor.refuse_without_features("scores", "Give them with the sequences.")
            features = ReadFeatures(columns, columns.with_stored(None, len(index[0])))
        numbers_PF = features.cells.numbers_RF.copy()
        for number, column in enumerate(columns.numbers):
            if not column.head:
                continue
            side = KINDS.index(LOGLIKS[column.name])
            sequences = self._sides[side]
            used, row_of_pair = np.unique(index[side], return_inverse=True)
            spec = self._predictor.spec(sequences.kind)
            folder = self._store.folder(sequences.kind, spec.fingerprint)
            loglik_U = read_logliks(folder, sequences.keys[used], column.head)
            numbers_PF[:, number] = loglik_U[row_of_pair]
        return ReadFeatures(columns, features.cells._replace(numbers_RF=numbers_PF))

    def _read(self, sequences: Sequences, index: NDArray[np.integer]) -> SideVectors:
        used, row = np.unique(index, return_inverse=True)
        x_ND = self._predictor.read(self._store, sequences.kind, sequences.keys[used])
        return SideVectors(x_ND, row, [sequences.chains[n] for n in used.tolist()])

    def score_rows(self, features: ReadFeatures | None) -> pd.DataFrame:
        """Score the pair of each row of both `Sequences`, all at once."""
        index = [sequences.of_row for sequences in self._sides]
        return self.score(*index, features=features).scores


def _paired(
    features: object, **chains: Iterable[str] | str | None
) -> tuple[list[list[str]], pd.Index | None]:
    """Return the chains of each pair, and the index of the Series that hold any; None without one.

    A single string is that of all pairs. Lists are paired by place, so that Series of different
    rows are refused.
    """
    lists: dict[str, list[str]] = {}
    for name, sequences in chains.items():
        if isinstance(sequences, pd.DataFrame) or not isinstance(sequences, Iterable | None):
            shown = "a DataFrame" if isinstance(sequences, pd.DataFrame) else repr(sequences)
            msg = (
                f"predict: {name} is {shown}; expected a sequence, or a list of them. Of a table, "
                "pass its columns, or the table to abag.predict(table, run=..., out=...)."
            )
            raise SequenceError(msg)
        if sequences is not None and not isinstance(sequences, str):
            lists[name] = list(sequences)
    if len({len(sequences) for sequences in lists.values()}) > 1:
        lengths = ", ".join(f"{len(sequences)} {name}" for name, sequences in lists.items())
        msg = f"predict: {lengths}; expected lists of equal length, or one string for all pairs."
        raise SequenceError(msg)
    pairs = len(next(iter(lists.values()), [""]))
    columns = []
    for name, chain in chains.items():
        columns.append(lists[name] if name in lists else [str(chain or "")] * pairs)
    beside = chains | {"features": features}
    if isinstance(features, Mapping):
        beside |= {f"features[{name!r}]": values for name, values in features.items()}
    series = {name: value for name, value in chains.items() if isinstance(value, pd.Series)}
    if not series:
        return columns, None  # features alone do not say which pairs these are
    first, shared = next(iter(series.items()))
    for name, values in beside.items():
        if isinstance(values, pd.Series | pd.DataFrame) and not values.index.equals(shared.index):
            msg = (
                f"predict: {first} and {name} have different indexes; expected the same rows in "
                "the same order. Pass columns of one table, or lists, which are paired by place."
            )
            raise SequenceError(msg)
    return columns, shared.index
