"""Trained heads that predict the affinity of antibodies and antigens.

A predictor stores the fingerprints of the encoders that it was trained with, and accepts vectors
of these encoders only. Sequences that a store lacks are encoded by a function that the caller
provides (`abag.load_predictor`), because this module imports no encoder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd

from abag import AbagError
from abag.core.files import is_partial
from abag.core.messages import counted, reporting, say
from abag.core.options import user_path
from abag.core.python_surface import as_html, names_keywords, shorten
from abag.embed.sequences.chains import KINDS, ParsedSequence, keys_array
from abag.embed.sequences.chains import antibody as antibody_chains
from abag.embed.sequences.chains import antigen as antigen_chains
from abag.embed.sequences.regions import arrange
from abag.embed.store.store import NoSuchEncoder, VectorsMissing, name_encoders, open_store
from abag.head.models.pair_model import OnFeatures, PairVectors
from abag.head.regimes.recognise import NewSequences, Recogniser

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.sequences.chains import Chains, Kind
    from abag.embed.sequences.options import AntibodyRegion
    from abag.embed.store.store import Store
    from abag.head.models.pair_model import PairModel


WEIGHTS, RECORD = "weights.safetensors", "predictor.json"
"""Files of a predictor."""
SCORE_COLUMNS = ("pkd_predicted", "sigma", "regime", "far", "why_far")


class PredictorDamaged(AbagError):
    """A predictor folder is incomplete, altered or of another version."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the prediction: the mean of models of one kind."""

    name: str
    models: tuple[PairModel, ...]

    def predict(self, vectors: PairVectors) -> NDArray[np.float64]:
        """Predict pKd, (P,)."""
        return np.asarray(np.mean([model.predict(vectors) for model in self.models], axis=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedRegime:
    """What a predictor does with the pairs of a regime that its run has measured."""

    name: str
    weights: tuple[float, ...]
    """Of all parts, in their order; they add up to 1."""
    spread: float
    """Factor of the prediction's standard deviation in sigma; see `models.sigma`."""
    noise: float
    """Residual noise in sigma, in pKd."""
    verdict: str
    """What the run has shown."""


class UnequalLengths(AbagError):
    """Lists of chains differ in length."""


class EmbedFunction(Protocol):
    """A function that adds the vectors of a table's sequences to a store, like `embed_table`."""

    def __call__(
        self,
        table: pd.DataFrame,
        store: Path,
        *,
        antibody_encoder: str,
        antigen_encoder: str,
        antibody_fingerprint: str,
        antigen_fingerprint: str,
        **options: Any,  # noqa: ANN401 - those of `abag.embed_table`
    ) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorSpec:
    """The vectors that a predictor needs of one kind of sequence."""

    name: str
    """Name of the encoder."""
    origin: str
    """Alias, hub name or folder that the encoder was loaded from."""
    fingerprint: str
    long: str
    """How long chains were encoded, as in encoder.json."""
    random_weights: bool
    """Whether the vectors have no biological meaning."""
    pooling: str
    width: int
    training_sequences: int
    """Number of distinct sequences in training."""


@dataclass(frozen=True, slots=True, repr=False)
class Predictor:
    """Models whose weighted mean is the prediction, and where their vectors usually are."""

    parts: tuple[Part, ...]
    regimes: Mapping[str, UsedRegime]
    """Those that the run has measured, by name."""
    antibody: VectorSpec
    antigen: VectorSpec
    seen: Recogniser
    """Tells what of a pair is new."""
    antibody_region: AntibodyRegion = "as-given"
    """Region that antibodies are cut to before they are encoded."""
    store: Path | None = None
    """The store of the run, if it is known and exists."""
    store_is_far: bool = False
    """Whether only the run names it, which may be somebody else's: nothing is written to it unless
    the user names it, too."""
    embed: EmbedFunction | None = None
    """Encodes sequences that a store lacks; None: they are refused."""
    adapters: Mapping[str, Path] = field(default_factory=dict)
    """Folders of the encoders' adapters, by kind."""

    @names_keywords
    def predict(
        self,
        heavy: Sequence[str] | str | None = None,
        light: Sequence[str] | str | None = None,
        antigen: Sequence[str] | str = "",
        *,
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
            The chains of an antigen are joined by ``|``.
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
            One row per pair, with ``pkd_predicted``, ``sigma`` (both in pKd), ``regime`` (what is
            new about the pair), ``far`` (bool: no regime that was measured covers the pair) and
            ``why_far``.

        Raises
        ------
        UnequalLengths
            If the lists differ in length.
        VectorsMissing
            If sequences are not stored and cannot be encoded.
        AbagError
            If a sequence is invalid, or an encoder is not the one of the run.
        """
        heavies, lights, antigens = _broadcast(heavy, light, antigen)
        antibodies = [
            arrange(
                ParsedSequence(antibody_chains(h, x)), region=self.antibody_region, number=False
            ).chains
            for h, x in zip(heavies, lights, strict=True)
        ]
        targets = [antigen_chains(text) for text in antigens]
        keys = keys_array("antibody", antibodies), keys_array("antigen", targets)
        with reporting(say), self._working_store(store) as path:
            opened = existing_store(path)
            new_antibodies = _distinct(antibodies, self.missing(opened, "antibody", keys[0]))
            new_antigens = _distinct(targets, self.missing(opened, "antigen", keys[1]))
            if self.embed is not None and (new_antibodies or new_antigens):
                padding = antibodies[0], targets[0]
                encode_new(
                    self, path, new_antibodies, new_antigens, padding,
                    antibody_encoder=antibody_encoder, antigen_encoder=antigen_encoder,
                    device=device, batch_tokens=batch_tokens, progress=progress,
                )  # fmt: skip
            return self.score_stored(open_store(path), antibodies, targets)[0]

    @property
    def reads_residues(self) -> bool:
        """Whether a part reads residues beside the vectors."""
        return any(isinstance(model, OnFeatures) for part in self.parts for model in part.models)

    def score(self, vectors: PairVectors, new: NewSequences) -> pd.DataFrame:
        """Predict pairs, each as a pair of its regime.

        All that is scored is scored here: tables, all pairs, lists of sequences and mutants.

        Parameters
        ----------
        vectors : PairVectors
            With the chains of both sequences, if the predictor `reads_residues`.
        new : NewSequences
            What is new about the antibody and the antigen of each pair, (P,).

        Returns
        -------
        DataFrame
            P rows with the columns `SCORE_COLUMNS`; see `predict`.

        Raises
        ------
        PredictorDamaged
            If the weights are so large that a prediction overflows.
        SequencesMissing
            If it needs chains that are not given.
        """
        return self.columns(*self.values(vectors, new), new)

    def values(
        self, vectors: PairVectors, new: NewSequences
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the predicted pKd of each pair and its sigma, (P,) each; see `score`."""
        with np.errstate(all="ignore"):  # checked here
            part_PK = np.stack([part.predict(vectors) for part in self.parts], axis=1)
            variance = self.variance(vectors, part_PK)
            pkd, sigma = np.zeros(len(part_PK)), np.zeros(len(part_PK))
            _, used, _ = self.seen.regimes_of(new, self.regimes)
            for name in np.unique(used).tolist():
                rows, one = used == name, self.regimes[name]
                pkd[rows] = part_PK[rows] @ np.array(one.weights)
                sigma[rows] = np.sqrt(one.spread**2 * variance[rows] + one.noise**2)
        if not (np.isfinite(pkd).all() and np.isfinite(sigma).all()):
            msg = (
                "the predictor gives infinity or NaN; expected finite predictions. Train it again."
            )
            raise PredictorDamaged(msg)
        return pkd, sigma

    def columns(
        self, pkd: NDArray[np.float64], sigma: NDArray[np.float64], new: NewSequences
    ) -> pd.DataFrame:
        """Return the columns `SCORE_COLUMNS` of P pairs with these `values`."""
        regime, _, why_far = self.seen.regimes_of(new, self.regimes)
        values = (pkd, sigma, regime, why_far != "", why_far)
        return pd.DataFrame(dict(zip(SCORE_COLUMNS, values, strict=True)))

    def variance(self, vectors: PairVectors, part_PK: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the variance of predictions in pKd^2, (P,): of models that have one, or networks.

        Parameters
        ----------
        part_PK : NDArray, shape=(P, K), dtype=float64
            Predictions of the parts.
        """
        models = [model for part in self.parts for model in part.models]
        own = [v for model in models if (v := model.variance(vectors)) is not None]
        if not own:
            several = [part.models for part in self.parts if len(part.models) > 1]
            own = [np.var([m.predict(vectors) for m in each], axis=0) for each in several]
        return np.asarray(np.mean(own or [np.zeros(len(part_PK))], axis=0))

    def verdicts(self, regimes: Iterable[str]) -> list[str]:
        """Return what the run has shown for regimes, the measured ones among them."""
        return [self.regimes[name].verdict for name in regimes if name in self.regimes]

    def __repr__(self) -> str:
        models = ", ".join(part.name for part in self.parts)
        sides = [
            f"{kind}: {spec.name} ({spec.fingerprint[:8]}), {spec.pooling}, "
            f"{spec.training_sequences:,} sequences in training"
            for kind in KINDS
            if (spec := self.spec(kind))
        ]
        verdicts = self.verdicts(self.regimes)
        return shorten([f"Predictor: {models}", *sides, *verdicts, f"store: {self.store}"])

    def _repr_html_(self) -> str:
        return as_html(repr(self))

    def spec(self, kind: Kind) -> VectorSpec:
        """Return the vectors needed of one kind."""
        return self.antibody if kind == "antibody" else self.antigen

    def missing(
        self, store: Store | None, kind: Kind, keys: NDArray[np.uint8]
    ) -> NDArray[np.bool_]:
        """Return which sequences lack a vector of the run's encoder.

        Parameters
        ----------
        store : Store or None
            None: a store that does not exist yet.
        keys : NDArray, shape=(N, 16), dtype=uint8

        Returns
        -------
        NDArray, shape=(N,), dtype=bool
        """
        if store is not None:
            with suppress(NoSuchEncoder):
                return store.folder(kind, self.spec(kind).fingerprint).missing(keys)
        return np.ones(len(keys), np.bool_)

    def refuse_missing(self, store: Store, kind: Kind, keys: NDArray[np.uint8]) -> None:
        """Raise `VectorsMissing` if sequences, keys (N, 16), lack a vector of the run's encoder."""
        spec, missing = self.spec(kind), int(self.missing(store, kind, keys).sum())
        if missing:
            stored = name_encoders(store.folders(kind))
            msg = (
                f"{store.path}: {missing} of {len(keys)} {kind} sequences have no vector from "
                f"{spec.name} ({spec.fingerprint[:8]}); the store has vectors of {stored}. Run "
                "abag embed on these sequences into this store first, with that encoder."
            )
            raise VectorsMissing(msg)

    def score_stored(
        self, store: Store, antibodies: Sequence[Chains], antigens: Sequence[Chains]
    ) -> tuple[pd.DataFrame, PairVectors]:
        """Predict P pairs of stored sequences.

        Returns
        -------
        DataFrame
            See `predict`.
        PairVectors
            What was read for them.

        Raises
        ------
        VectorsMissing
            If the store lacks some of them.
        """
        vectors, index, states, unique = [], [], [], []
        for kind, chains in zip(KINDS, (antibodies, antigens), strict=True):
            row = {one: n for n, one in enumerate(dict.fromkeys(chains))}
            unique.append(list(row))
            vectors.append(self.read(store, kind, keys_array(kind, unique[-1])))
            index.append(np.array([row[one] for one in chains], np.int64))
            states.append(self.seen.states(kind, unique[-1])[index[-1]])
        pairs = PairVectors(vectors[0], vectors[1], index[0], index[1], unique[0], unique[1])
        return self.score(pairs, NewSequences(states[0], states[1])), pairs

    def read(self, store: Store, kind: Kind, keys: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Read vectors of the run's encoder, float32 (N, D), by keys of shape (N, 16).

        Raises
        ------
        VectorsMissing
            If the store lacks some of them.
        """
        self.refuse_missing(store, kind, keys)
        spec = self.spec(kind)
        return store.folder(kind, spec.fingerprint).read(keys, spec.pooling)

    def resolve_store(self, given: Path | str | None) -> Path:
        """Return the given store, or else the store of the run.

        Raises
        ------
        VectorsMissing
            If neither is known, or new vectors could be written to a store far from the run.
        """
        if given is not None:
            return user_path(given, "--store")
        if self.store is None:
            msg = (
                "--store: not given, and the store that the run was trained from is unknown or "
                "does not exist. Give --store DIR."
            )
            raise VectorsMissing(msg)
        if self.embed is not None and self.store_is_far:
            msg = (
                f"--store: not given, and {self.store}, the store that the run names, is neither "
                "near the run nor in the current folder; expected a store that may receive new "
                f"vectors. If it is yours, give --store {self.store}."
            )
            raise VectorsMissing(msg)
        return self.store

    @contextmanager
    def _working_store(self, given: Path | str | None) -> Iterator[Path]:
        """Yield the store to use; a temporary one if none is known and sequences can be encoded."""
        if given is not None or self.store is not None or self.embed is None:
            yield self.resolve_store(given)
            return
        with tempfile.TemporaryDirectory(prefix="abag-predict-") as folder:
            yield Path(folder) / "store"


def encode_new(
    predictor: Predictor,
    store: Path,
    antibodies: Sequence[Chains],
    antigens: Sequence[Chains],
    padding: tuple[Chains, Chains],
    **options: Any,  # noqa: ANN401
) -> None:
    """Add vectors of distinct sequences to a store, with the encoders of a predictor's run.

    Tables hold pairs, so `padding`, any antibody and antigen of the input, fills up the shorter
    list. The options are those of `Predictor.predict`.
    """
    assert predictor.embed is not None
    rows = max(len(antibodies), len(antigens))
    table = pd.DataFrame(
        [*antibodies, *[padding[0]] * (rows - len(antibodies))], columns=["heavy", "light"]
    )
    targets = [*antigens, *[padding[1]] * (rows - len(antigens))]
    table["antigen"] = ["|".join(chains) for chains in targets]
    say(
        f"{counted(len(antibodies), 'antibody')} and {counted(len(antigens), 'antigen')} have no "
        "vector yet: "
        f"encoding them with {predictor.antibody.name} and {predictor.antigen.name} into {store}"
    )
    of_run: dict[str, str | Path] = {
        "antibody_encoder": predictor.antibody.origin,
        "antigen_encoder": predictor.antigen.origin,
        "long_antigens": predictor.antigen.long.partition("-")[0].replace("whole", "window"),
    }
    of_run |= {f"{kind}_adapter": path for kind, path in predictor.adapters.items()}
    with reporting(details=False):  # which encoders, and how many sequences, has been said
        predictor.embed(
            table,
            store,
            antibody_fingerprint=predictor.antibody.fingerprint,
            antigen_fingerprint=predictor.antigen.fingerprint,
            **of_run | {name: value for name, value in options.items() if value is not None},
        )


def existing_store(path: Path) -> Store | None:
    """Open a store; None if the path does not exist or is an empty folder.

    A process that was killed before it committed anything leaves partial files there.
    """
    empty = not path.exists() or (path.is_dir() and all(map(is_partial, path.iterdir())))
    return None if empty else open_store(path)


def _broadcast(*chains: Sequence[str] | str | None) -> list[list[str]]:
    """Repeat single strings to the length of the lists; None stands for absent chains."""
    lists = [None if c is None or isinstance(c, str) else list(c) for c in chains]
    lengths = {len(one) for one in lists if one is not None}
    if len(lengths) > 1:
        named = zip(("heavy", "light", "antigen"), lists, strict=True)
        found = ", ".join(f"{len(one)} {name}" for name, one in named if one is not None)
        msg = f"predict: {found}; expected lists of equal length, or one string for all pairs."
        raise UnequalLengths(msg)
    rows = lengths.pop() if lengths else 1
    pairs = zip(chains, lists, strict=True)
    return [[str(c or "")] * rows if one is None else one for c, one in pairs]


def _distinct(chains: Sequence[Chains], wanted: NDArray[np.bool_]) -> list[Chains]:
    return list(dict.fromkeys(chains[i] for i in np.flatnonzero(wanted).tolist()))
