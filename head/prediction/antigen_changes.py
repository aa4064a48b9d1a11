"""Changes of an antigen from the nearest training antigen, in residues.

Antigens have no common numbering, but the edits between a variant and the antigen that it is made
from can be counted exactly: substituted, inserted and deleted residues, over all chains. The
training antigens are kept for this in a file of their own in the predictor folder, which is not
needed for predictions and is not shared (`abag.head.sharing`).

M antigens, T training antigens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.files import read_json, write_json
from abag.embed.sequences.chains import RESIDUES
from abag.head.clustering.alignment import whole_distances
from abag.head.clustering.profiles import BITS_PER_EDIT, Profiles
from abag.head.prediction.applicability import FAR_QUANTILE

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains

FILE = "antigens.json"
COLUMN = "antigen_changes"
UNLIKE = -1
"""In the place of a count: no training antigen is similar."""
LEAST_IDENTITY = 0.9
"""Of an antigen to a training antigen, up to which changes are counted: one is a variant."""
MOST_ANTIGENS = 20_000
"""A predictor of more training antigens does not keep them."""
SAMPLED = 256
"""Training antigens whose changes from the others give the limit."""
BLOCK = 256
_MOST_COUNT = np.iinfo(np.int16).max
_CHAINS = re.compile(f"[{RESIDUES}]+(?:\\|[{RESIDUES}]+)*")


class TrainingAntigens:
    """The training antigens of a predictor.

    Parameters
    ----------
    antigens : sequence of str
        Chains joined by ``|``, T of them.
    most_changes : int or None
        Changes up to which an antigen is not far; None: no number of them makes it far.
    """

    def __init__(self, antigens: Sequence[str], most_changes: int | None) -> None:
        self.antigens, self.most_changes = tuple(antigens), most_changes

    def count(self, antigens: Sequence[Chains]) -> NDArray[np.int16]:
        """Count the changes of each antigen from the nearest training antigen.

        Returns
        -------
        NDArray, shape=(M, 1), dtype=int16
            0 for a training antigen. `UNLIKE` without a training antigen of `LEAST_IDENTITY`.
        """
        texts = ["|".join(chains) for chains in antigens]
        counts = dict.fromkeys(self.antigens, 0)
        if new := [text for text in dict.fromkeys(texts) if text not in counts]:
            counts |= zip(new, nearest_edits(new, self.antigens).tolist(), strict=True)
        return np.array([counts[text] for text in texts], np.int16).reshape(-1, 1)

    def is_far(self, changes_M1: NDArray[np.int16]) -> NDArray[np.bool_]:
        """Return whether the limit is exceeded, (M,), from what `count` returns."""
        changes_M = changes_M1[:, 0]
        if self.most_changes is None:
            return np.zeros(len(changes_M), np.bool_)
        return np.asarray((changes_M > self.most_changes) | (changes_M == UNLIKE))

    def reasons(self, changes_M1: NDArray[np.int16]) -> dict[str, NDArray[np.bool_]]:
        """Return `is_far` as the only reason."""
        return {COLUMN: self.is_far(changes_M1)}

    def columns(self, changes_M1: NDArray[np.int16]) -> dict[str, Any]:
        """Return the column of what `count` returns, missing where `UNLIKE`."""
        changes_M = changes_M1[:, 0].copy()
        return {COLUMN: pd.arrays.IntegerArray(changes_M, changes_M == UNLIKE)}


def measure_antigens(antigens: Sequence[Chains]) -> TrainingAntigens | None:
    """Keep T distinct training antigens; None if they are too many.

    The limit is the 99 % quantile of the changes of a training antigen from the nearest other one.
    If more than 1 % of them are unlike all others, there is none.
    """
    if len(antigens) > MOST_ANTIGENS:
        return None
    texts = ["|".join(chains) for chains in antigens]
    if len(texts) == 1:
        return TrainingAntigens(texts, 0)
    drawn = np.random.default_rng(0).permutation(len(texts))[:SAMPLED]
    found = nearest_edits([texts[n] for n in drawn.tolist()], texts, themselves=drawn)
    changes = np.where(found == UNLIKE, np.iinfo(np.int64).max, found)
    most = int(np.quantile(changes, FAR_QUANTILE, method="lower"))
    return TrainingAntigens(texts, most if most <= _MOST_COUNT else None)


def nearest_edits(
    asked: Sequence[str], others: Sequence[str], *, themselves: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Count the edits between each of M strings and the nearest of T others.

    Parameters
    ----------
    themselves : NDArray, shape=(M,), dtype=int64, optional
        Index among the others of each string itself, which does not count.

    Returns
    -------
    NDArray, shape=(M,), dtype=int64
        `UNLIKE` without one of `LEAST_IDENTITY`.
    """
    strings = np.array([*asked, *others], np.object_)
    lengths = np.array([len(text) for text in strings])
    j = np.arange(len(asked), len(strings))
    bits_TD = Profiles(others).bits(slice(None))
    found = np.full(len(asked), UNLIKE, np.int64)
    for start in range(0, len(asked), BLOCK):
        i = np.arange(start, min(start + BLOCK, len(asked)))
        bits_CD = Profiles(asked[start : start + BLOCK]).bits(slice(None))
        differing_CT = (
            bits_CD.sum(axis=1)[:, None] + bits_TD.sum(axis=1) - 2 * (bits_CD @ bits_TD.T)
        )
        least_CT = np.ceil(differing_CT / BITS_PER_EDIT).astype(np.int64)
        np.maximum(least_CT, abs(lengths[i][:, None] - lengths[j]), out=least_CT)
        possible_CT = least_CT <= _allowed(lengths[i][:, None], lengths[j])
        if themselves is not None:
            possible_CT[np.arange(len(i)), themselves[i]] = False
        found[i] = _nearest(strings, lengths, (i, j), least_CT, possible_CT)
    return found


def _allowed(length_i: NDArray[np.int64], length_j: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the edits that `LEAST_IDENTITY` allows."""
    longer = np.maximum(length_i, length_j)
    return np.floor((1 - LEAST_IDENTITY) * longer + 1e-9).astype(np.int64)


def _nearest(
    strings: NDArray[np.object_],
    lengths: NDArray[np.int64],
    ends: tuple[NDArray[np.int64], NDArray[np.int64]],
    least_CT: NDArray[np.int64],
    possible_CT: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Return the least edits between C strings and the possible ones of T others, (C,).

    The likeliest one comes first: most others then need more edits by their bound `least_CT`.
    """
    (i, j), none = ends, np.iinfo(np.int64).max
    best_C = np.full(len(i), none)
    likely_C = np.where(possible_CT, least_CT, none).argmin(axis=1)
    is_likely_CT = np.arange(len(j)) == likely_C[:, None]
    for is_round_CT in (is_likely_CT, ~is_likely_CT):
        at_C, at_T = np.nonzero(possible_CT & is_round_CT & (least_CT < best_C[:, None]))
        if len(at_C):
            pair = i[at_C], j[at_T]
            allowed = np.minimum(_allowed(*(lengths[end] for end in pair)), best_C[at_C] - 1)
            edits = whole_distances(strings, *pair, int(allowed.max()))
            np.minimum.at(best_C, at_C, np.where(edits <= allowed, edits, none))
    return np.where(best_C == none, UNLIKE, np.minimum(best_C, _MOST_COUNT))


def save_antigens(folder: Path, found: TrainingAntigens | None, predictor: str) -> None:
    """Write the training antigens of the predictor with this digest into its folder."""
    if found is None:
        (folder / FILE).unlink(missing_ok=True)
        return
    record = {"most_changes": found.most_changes, "antigens": list(found.antigens)}
    write_json(folder / FILE, {"digest": _digest(record, predictor), **record})


def load_antigens(folder: Path, predictor: str) -> TrainingAntigens | None:
    """Read what `save_antigens` wrote; None without the file.

    Raises
    ------
    FileDamaged, OSError
        If it cannot be read.
    ValueError
        If it was altered, or belongs to another predictor.
    """
    path = folder / FILE
    if not path.exists():
        return None
    record = read_json(path)
    if record.pop("digest", None) != _digest(record, predictor):
        msg = "the digest differs"
        raise ValueError(msg)
    found: list[Any] = [record.get("antigens"), record.get("most_changes")]
    antigens, most = found
    valid = (
        len(record) == 2
        and isinstance(antigens, list)
        and 0 < len(antigens) <= MOST_ANTIGENS
        and all(isinstance(one, str) and _CHAINS.fullmatch(one) for one in antigens)
        and (most is None or (type(most) is int and 0 <= most <= _MOST_COUNT))
    )
    if not valid:
        msg = "the training antigens are not valid"
        raise ValueError(msg)
    return TrainingAntigens(antigens, most)


def _digest(record: dict[str, Any], predictor: str) -> str:
    """Hash the content together with the digest of the predictor: 32 hex digits."""
    text = json.dumps([predictor, record], sort_keys=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()
