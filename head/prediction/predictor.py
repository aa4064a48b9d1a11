"""Trained heads that predict the affinity of antibodies and antigens.

A predictor stores the fingerprints of the encoders that it was trained with, and accepts vectors
of these encoders only. Sequences that a store lacks are encoded by a function that the caller
provides (`abag.load_predictor`), because this module imports no encoder.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from abag.head.closed_form.pair_model import PairVectors
from abag.head.closed_form.residue_model import ResidueModel
from abag.head.prediction.antigen_changes import TrainingAntigens
from abag.head.prediction.applicability import Applicability
from abag.head.prediction.novelty import Novelty
from abag.head.prediction.scores import Compared, NewCounter, count_new, score_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.sequences.chains import Chains, Kind
    from abag.embed.sequences.options import AntibodyRegion
    from abag.embed.store.store import Store
    from abag.head.closed_form.pair_model import PairModel


class PredictorDamaged(AbagError):
    """A predictor folder is incomplete, altered or of another version."""


@dataclass(frozen=True, slots=True)
class Member:
    """A fitted model and its share of the prediction."""

    model: PairModel
    weight: float
    """The weights of all members add up to 1."""


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
    """Number of distinct sequences that trained any of the members."""
    far_distance: float
    """See `abag.head.prediction.applicability`."""


@dataclass(frozen=True, slots=True, repr=False)
class Predictor:
    """Models whose weighted mean is the prediction, and where their vectors usually are."""

    members: tuple[Member, ...]
    spread: float
    """Factor of the prediction's standard deviation in sigma; see `training.uncertainty`."""
    noise: float
    """Residual noise in sigma, in pKd."""
    calibrated: bool
    """Whether sigma was fitted to groups of pairs that its heads had not seen."""
    antibody: VectorSpec
    antigen: VectorSpec
    applicability: Mapping[Kind, Applicability]
    novelty: Novelty
    """Residues and combinations of changes of the training antibodies."""
    antigens: TrainingAntigens | None = None
    """The training antigens; None if they were not kept, or not shared."""
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
            One row per pair, with ``pkd_predicted``, ``sigma`` (both in pKd; without ``sigma`` if
            it could not be calibrated), ``far_antibody``, ``far_antigen`` (bool), ``new_positions``
            and ``new_residues`` (Int16). If the training antibodies are variants of one, also
            ``changes`` (Int16) and ``new_combination`` (boolean); see `Novelty.count`. Last,
            ``antigen_changes`` (Int16) from the nearest training antigen, see
            `TrainingAntigens.count`, unless the predictor was shared.

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
            scores, _ = self.score_stored(open_store(path), antibodies, targets)
            return self.without_bad_sigma(scores)

    @property
    def reads_residues(self) -> bool:
        """Whether a model reads the residues of antibodies beside their vectors."""
        return any(isinstance(member.model, ResidueModel) for member in self.members)

    def score(self, vectors: PairVectors) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Predict for pairs of vectors.

        Parameters
        ----------
        vectors : PairVectors
            With the chains of the antibodies, if the predictor `reads_residues`.

        Returns
        -------
        tuple of NDArray, shape=(P,), dtype=float64
            Predicted pKd and sigma. Sigma grows with the variance that members give, or else with
            the variance over the members.

        Raises
        ------
        PredictorDamaged
            If the weights are so large that a prediction overflows.
        SequencesMissing
            If it needs the chains of the antibodies, and they are not given.
        """
        with np.errstate(all="ignore"):  # checked here
            pkd, sigma = self._score(vectors)
        if not (np.isfinite(pkd).all() and np.isfinite(sigma).all()):
            msg = (
                "the predictor gives infinity or NaN; expected finite predictions. Train it again."
            )
            raise PredictorDamaged(msg)
        return pkd, sigma

    def _score(self, vectors: PairVectors) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        first = self.members[0].model.predict(vectors)
        # Sums of differences from the first member: accurate, and two numbers per pair.
        total, squares = np.zeros_like(first), np.zeros_like(first)
        for member in self.members[1:]:
            difference = member.model.predict(vectors) - first
            total += member.weight * difference
            squares += member.weight * np.square(difference)
        spread = np.maximum(squares - np.square(total), 0.0)
        own = [v for m in self.members if (v := m.model.variance(vectors)) is not None]
        return first + total, self.sigma(np.mean(own, axis=0) if own else spread)

    def sigma(self, variance: NDArray[np.float64]) -> NDArray[np.float64]:
        """Turn the variance of predictions, shape (P,), into the standard error in pKd, (P,)."""
        return np.sqrt(self.spread**2 * variance + self.noise**2)

    def __repr__(self) -> str:
        counts = Counter(type(member.model).__name__ for member in self.members)
        models = ", ".join(f"{n} x {name}" for name, n in counts.items())
        sides = [
            f"{kind}: {spec.name} ({spec.fingerprint[:8]}), {spec.pooling}, "
            f"{spec.training_sequences:,} sequences in training"
            for kind in KINDS
            if (spec := self.spec(kind))
        ]
        known = "calibrated" if self.calibrated else "not calibrated"
        sigma = f"residual noise {self.noise:.2f} pKd, sigma {known}"
        return shorten([f"Predictor: {models}", *sides, sigma, f"store: {self.store}"])

    def _repr_html_(self) -> str:
        return as_html(repr(self))

    def spec(self, kind: Kind) -> VectorSpec:
        """Return the vectors needed of one kind."""
        return self.antibody if kind == "antibody" else self.antigen

    def counter(self, kind: Kind) -> NewCounter | None:
        """Return what counts new things in sequences of one kind, if it was kept."""
        return self.novelty if kind == "antibody" else self.antigens

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
            See `predict`; always with sigma.
        PairVectors
            What was read for them.

        Raises
        ------
        VectorsMissing
            If the store lacks some of them.
        """
        vectors, index, compared = [], [], []
        for kind, chains in zip(KINDS, (antibodies, antigens), strict=True):
            row = {one: n for n, one in enumerate(dict.fromkeys(chains))}
            vectors.append(self.read(store, kind, keys_array(kind, list(row))))
            index.append(np.array([row[one] for one in chains], np.int64))
            side = self.compare(kind, vectors[-1], count_new(self.counter(kind), list(row)))
            compared.append(side.of_rows(index[-1]))
        (antibody_ND, antigen_ME), (i, j) = vectors, index
        pairs = PairVectors(antibody_ND, antigen_ME, i, j, list(dict.fromkeys(antibodies)))
        return score_columns(*self.score(pairs), *compared), pairs

    def compare(self, kind: Kind, x_ND: NDArray[np.float32], new_NC: NDArray[np.int16]) -> Compared:
        """Compare sequences with the training set, given their vectors and what is new in them."""
        return Compared(kind, self.applicability[kind].is_far(x_ND), self.counter(kind), new_NC)

    def without_bad_sigma(self, scores: pd.DataFrame) -> pd.DataFrame:
        """Leave out sigma if it is not calibrated."""
        return scores if self.calibrated else scores.drop(columns="sigma")

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
