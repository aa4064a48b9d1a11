"""Trained heads that score antibodies against antigens, wherever their vectors come from.

A predictor knows the fingerprints of the encoders it was trained with and takes vectors of no
others. What a store lacks it has encoded by whoever made it (`abag.load_predictor`): nothing in
this room knows an encoder.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd
import torch

from abag import AbagError
from abag.core.keys import distinct_keys
from abag.embed.sequences.chains import antibody as antibody_chains
from abag.embed.sequences.chains import antigen as antigen_chains
from abag.embed.sequences.chains import keys_array
from abag.embed.store.store import NoSuchEncoder, open_store
from abag.head.data.scaling import Standardizer
from abag.head.data.vectors import VectorsMissing
from abag.head.prediction.applicability import Applicability
from abag.head.prediction.factorised import factorise

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from abag.embed.sequences.chains import Chains, Kind
    from abag.embed.store.store import Store

PREDICTED = 4096
"""Pairs a pass: what of them is in work stays in a core's cache."""


class UnequalLengths(AbagError):
    """Lists of chains that do not pair up."""


class EmbedFunction(Protocol):
    """Adds the vectors of a table's sequences to a store, by exactly these encoders."""

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
    """What the predictor knows of one kind of vector."""

    name: str
    """Encoder, for reading."""
    origin: str
    """Alias, hub name or folder it was loaded from: where to look for it again."""
    fingerprint: str
    """Encoder, for checking."""
    long: str
    """What became of long chains, as encoder.json says."""
    random_weights: bool
    """Whether the vectors mean nothing biologically."""
    pooling: str
    width: int
    training_sequences: int
    """Distinct sequences that trained some member."""
    far_distance: float
    """See `abag.head.prediction.applicability`."""


@dataclass(frozen=True, slots=True)
class EnsembleMember:
    """One trained head and its scaling; a cross-validated run has one a fold."""

    model: nn.Module
    antibody: Standardizer
    antigen: Standardizer
    pkd_mean: float
    pkd_scale: float


@dataclass(frozen=True, slots=True)
class Predictor:
    """Heads that score pairs of vectors, and the store that usually holds the vectors."""

    members: tuple[EnsembleMember, ...]
    antibody: VectorSpec
    antigen: VectorSpec
    antibody_applicability: Applicability
    antigen_applicability: Applicability
    spread: float
    """What the members' standard deviation is multiplied by; see `training.uncertainty`."""
    noise: float
    """What all members miss, in pKd."""
    store: Path | None = None
    """The run's store, where it is known and still there."""
    embed: EmbedFunction | None = None
    """Encodes what a store lacks; None: it is refused."""
    adapters: Mapping[str, Path] = field(default_factory=dict)
    """Folders of what adapted the encoders, by kind."""

    def predict(
        self,
        heavy: Sequence[str] | str | None = None,
        light: Sequence[str] | str | None = None,
        antigen: Sequence[str] | str = "",
        *,
        store: Path | str | None = None,
        say: Callable[[str], None] | None = None,
        **options: Any,  # noqa: ANN401
    ) -> pd.DataFrame:
        """Score antibodies against antigens, pair by pair.

        Parameters
        ----------
        heavy, light, antigen : sequence of str, or str
            One a pair, or one for all pairs; either antibody chain may be left out. Antigen
            chains are joined by ``|``.
        store : path, optional
            Holds the vectors, and takes those of new sequences; by default the run's store, or,
            where that is not known or gone, a temporary one.
        say : callable, optional
            Takes each message; by default they go to stderr.
        **options
            Of `abag.embed_table` (``device``, ``progress`` ...), for sequences that are new, and
            ``antibody_encoder`` or ``antigen_encoder``: where the run's encoder lies here.

        Returns
        -------
        DataFrame
            ``pkd_predicted``, ``sigma`` (both in pKd), ``far_antibody``, ``far_antigen`` (bool),
            one row a pair.

        Raises
        ------
        AbagError
            For a chain that is none, an encoder that is not the run's, or (`VectorsMissing`)
            sequences that are not stored where nothing can be encoded.
        """
        heavies, lights, antigens = _pair_up(heavy, light, antigen)
        antibodies = [antibody_chains(h, x) for h, x in zip(heavies, lights, strict=True)]
        targets = [antigen_chains(text) for text in antigens]
        keys = keys_array("antibody", antibodies), keys_array("antigen", targets)
        with self._place(store) as place:
            opened = existing_store(place)
            new = [
                _distinct(chains, self.missing(opened, kind, of_kind))
                for kind, chains, of_kind in zip(_KINDS, (antibodies, targets), keys, strict=True)
            ]
            if self.embed is not None and any(new):
                pads = antibodies[0], targets[0]
                self.encode(place, new[0], new[1], pads, say=say or _to_stderr, **options)
            return self.predict_keys(open_store(place), *keys)

    def spec(self, kind: Kind) -> VectorSpec:
        """What is known of the antibodies, or of the antigens."""
        return self.antibody if kind == "antibody" else self.antigen

    def applicability(self, kind: Kind) -> Applicability:
        """How far the training antibodies, or antigens, reach."""
        return self.antibody_applicability if kind == "antibody" else self.antigen_applicability

    def missing(
        self, store: Store | None, kind: Kind, keys: NDArray[np.uint8]
    ) -> NDArray[np.bool_]:
        """Tell which sequences, by key (N, 16), have no vector from the run's encoder; (N,)."""
        if store is not None:
            with suppress(NoSuchEncoder):
                return store.folder(kind, self.spec(kind).fingerprint).missing(keys)
        return np.ones(len(keys), np.bool_)

    def refuse_missing(self, store: Store, kind: Kind, keys: NDArray[np.uint8]) -> None:
        """Raise if some sequences, by key (N, 16), have no vector from the run's encoder.

        Raises
        ------
        VectorsMissing
        """
        side, missing = self.spec(kind), int(self.missing(store, kind, keys).sum())
        if missing:
            held = ", ".join(f.path.name for f in store.folders(kind)) or "none"
            msg = (
                f"{store.path}: {missing} of {len(keys)} {kind} sequences have no vector from "
                f"{side.name} ({side.fingerprint[:8]}); stored are vectors of {held}. Run abag "
                "embed on them into this store first, with that encoder."
            )
            raise VectorsMissing(msg)

    def encode(
        self,
        store: Path,
        antibodies: Sequence[Chains],
        antigens: Sequence[Chains],
        pads: tuple[Chains, Chains],
        *,
        say: Callable[[str], None],
        **options: Any,  # noqa: ANN401
    ) -> None:
        """Add the vectors of sequences to a store, by exactly the run's encoders.

        ``pads`` are any antibody and antigen asked for: a table of pairs needs both.
        """
        if self.embed is None:  # the caller's own mistake
            msg = "this predictor cannot encode"
            raise TypeError(msg)
        rows = max(len(antibodies), len(antigens))
        bodies = [*antibodies, *[pads[0]] * (rows - len(antibodies))]
        targets = [*antigens, *[pads[1]] * (rows - len(antigens))]
        frame = pd.DataFrame(bodies, columns=["heavy", "light"]).assign(
            antigen=["|".join(chains) for chains in targets]
        )
        say(
            f"{len(antibodies):,} antibodies and {len(antigens):,} antigens have no vector yet; "
            f"encoding them with {self.antibody.name} and {self.antigen.name} into {store}"
        )
        asked: dict[str, str | Path] = {
            "antibody_encoder": self.antibody.origin,
            "antigen_encoder": self.antigen.origin,
            "long_antigens": self.antigen.long.partition("-")[0].replace("whole", "window"),
        }
        asked |= {f"{kind}_adapter": path for kind, path in self.adapters.items()}
        self.embed(
            frame,
            store,
            antibody_fingerprint=self.antibody.fingerprint,
            antigen_fingerprint=self.antigen.fingerprint,
            **asked | {name: value for name, value in options.items() if value is not None},
        )

    def predict_keys(
        self, store: Store, antibody_keys: NDArray[np.uint8], antigen_keys: NDArray[np.uint8]
    ) -> pd.DataFrame:
        """Score pairs given by key, each array of shape (P, 16); see `predict`."""
        (bodies, antibody), (targets, antigen) = (
            distinct_keys(keys) for keys in (antibody_keys, antigen_keys)
        )
        antibody_ND, antigen_ME = (
            self.read(store, "antibody", bodies),
            self.read(store, "antigen", targets),
        )
        return self.predict_vectors(antibody_ND, antigen_ME, antibody, antigen)

    def read(self, store: Store, kind: Kind, keys: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Read the vectors of distinct sequences, (N, 16) keys, from the run's encoder; (N, D).

        Raises
        ------
        VectorsMissing
        """
        self.refuse_missing(store, kind, keys)
        side = self.spec(kind)
        return store.folder(kind, side.fingerprint).read(keys, side.pooling)

    def predict_vectors(
        self,
        antibody_ND: NDArray[np.float32],
        antigen_ME: NDArray[np.float32],
        antibody: NDArray[np.integer],
        antigen: NDArray[np.integer],
    ) -> pd.DataFrame:
        """Score pairs of stored vectors.

        Parameters
        ----------
        antibody_ND, antigen_ME : NDArray, dtype=float32
            One row a unique sequence.
        antibody, antigen : NDArray, shape=(P,), dtype=integer
            Their rows in each pair.

        Returns
        -------
        DataFrame
            See `predict`.
        """
        pkd, sigma = self.score(antibody_ND, antigen_ME, antibody, antigen)
        return pd.DataFrame(
            {
                "pkd_predicted": pkd,
                "sigma": sigma,
                "far_antibody": self.antibody_applicability.is_far(antibody_ND)[antibody],
                "far_antigen": self.antigen_applicability.is_far(antigen_ME)[antigen],
            }
        )

    def score(
        self,
        antibody_ND: NDArray[np.float32],
        antigen_ME: NDArray[np.float32],
        antibody: NDArray[np.integer],
        antigen: NDArray[np.integer],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return predicted pKd and sigma of pairs of stored vectors, each (P,); as above."""
        # Sums over members, less the first one: memory stays two numbers a pair.
        first = total = squares = np.zeros(0)
        for k, member in enumerate(self.members):
            scores = _score(member, antibody_ND, antigen_ME, antibody, antigen)
            if k == 0:
                first, total, squares = scores, np.zeros_like(scores), np.zeros_like(scores)
            else:
                total += scores - first
                squares += np.square(scores - first)
        mean = total / len(self.members)
        variance = np.maximum(squares / len(self.members) - np.square(mean), 0.0)
        return first + mean, self.sigma(variance)

    def sigma(self, variance: NDArray[np.float64]) -> NDArray[np.float64]:
        """Turn the members' variance into the standard deviation of the error, in pKd."""
        return np.sqrt(self.spread**2 * variance + self.noise**2)

    def resolve_store(self, given: Path | str | None) -> Path:
        """Return the store given, or else the run's.

        Raises
        ------
        VectorsMissing
            If there is neither.
        """
        if given is None and self.store is None:
            msg = (
                "--store: not given, and the store that the run was trained from is not known or "
                "not here; expected one. Give --store DIR."
            )
            raise VectorsMissing(msg)
        return Path(given or self.store or "")

    @contextmanager
    def _place(self, given: Path | str | None) -> Iterator[Path]:
        """Find the store to work with; a temporary one where vectors can be made anew."""
        if given is not None or self.store is not None or self.embed is None:
            yield self.resolve_store(given)
            return
        with tempfile.TemporaryDirectory(prefix="abag-predict-") as folder:
            yield Path(folder) / "store"


def existing_store(place: Path) -> Store | None:
    """Open a store; None where none has been made yet."""
    empty = not place.exists() or (place.is_dir() and not any(place.iterdir()))
    return None if empty else open_store(place)


_KINDS: tuple[Kind, Kind] = ("antibody", "antigen")


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


def _pair_up(*chains: Sequence[str] | str | None) -> list[list[str]]:
    """Give every list the same length: a single string serves all pairs, None is an absent chain.

    Raises
    ------
    UnequalLengths
    """
    lists = [None if c is None or isinstance(c, str) else list(c) for c in chains]
    lengths = {len(one) for one in lists if one is not None}
    if len(lengths) > 1:
        names = ("heavy", "light", "antigen")
        said = ", ".join(
            f"{len(one)} {n}" for n, one in zip(names, lists, strict=True) if one is not None
        )
        msg = f"predict: {said}; expected as many of each, or one text for all. Give equal lists."
        raise UnequalLengths(msg)
    rows = lengths.pop() if lengths else 1
    return [
        [str(c or "")] * rows if one is None else one for c, one in zip(chains, lists, strict=True)
    ]


def _distinct(chains: Sequence[Chains], wanted: NDArray[np.bool_]) -> list[Chains]:
    return list(dict.fromkeys(chains[i] for i in np.flatnonzero(wanted).tolist()))


@torch.no_grad()
def _score(
    member: EnsembleMember,
    antibody_ND: NDArray[np.float32],
    antigen_ME: NDArray[np.float32],
    antibody: NDArray[np.integer],
    antigen: NDArray[np.integer],
) -> NDArray[np.float64]:
    """Score pairs by one member, each sequence's share of the first layer computed once."""
    parts = factorise(member.model, antibody_ND.shape[1])
    left_NH = parts.antibody(torch.from_numpy(member.antibody.apply(antibody_ND)))
    right_MH = parts.antigen(torch.from_numpy(member.antigen.apply(antigen_ME)))
    z = np.empty(len(antibody), np.float32)
    for at in range(0, len(z), PREDICTED):
        pairs = slice(at, at + PREDICTED)
        i, j = (torch.from_numpy(index[pairs].astype(np.int64)) for index in (antibody, antigen))
        z[pairs] = parts.join(left_NH[i], right_MH[j]).numpy()
    return z.astype(np.float64) * member.pkd_scale + member.pkd_mean
