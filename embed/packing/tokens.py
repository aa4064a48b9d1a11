"""Chains to token ids, and which tokens each pooling averages.

An encoder reads *spans*: runs of tokens that attend to one another and to nothing else. A
paired antibody is one span for IgT5 and two for an encoder that takes one chain; a long antigen
chain is several windows. Every pooling here is a weighted sum over tokens, so a span carries
one weight a token and pooling, and nothing downstream needs to know what a window is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.embed.sequences.chains import Chains, Kind

TOKENS_VERSION = 1  # changes when the ids, the windows or the pooling weights change
WINDOW_RESIDUES = 1022  # ESM-2 was trained on 1024 tokens, two of them special

LongPolicy = Literal["window", "truncate", "error"]


class TokenizerMismatch(AbagError):
    """A checkpoint's tokenizer disagrees with our table."""


class SequenceTooLong(AbagError):
    """A chain is longer than the encoder takes, and the policy is to refuse."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token ids of one encoder family.

    Attributes
    ----------
    ids : ndarray, shape=(256,), dtype=int32
        Id of each residue letter by its byte; -1 for what is not a residue.
    start, end : int or None
        Tokens before and after every chain, None where the family has none.
    between : int or None
        Token between heavy and light; None where a span holds one chain only.
    pad : int
        Token that fills a padded batch.
    max_residues : int or None
        Longest chain the positions reach, None for no limit.
    has_cls : bool
        Whether the vector at `start` is a pooling of its own.
    """

    ids: NDArray[np.int32]
    start: int | None
    end: int | None
    between: int | None
    pad: int
    max_residues: int | None
    has_cls: bool

    @property
    def specials(self) -> int:
        """Number of special tokens around one chain."""
        return (self.start is not None) + (self.end is not None)

    def encode(self, chain: str) -> NDArray[np.int32]:
        """Look up residue ids: shape (L,), no special tokens."""
        return self.ids[np.frombuffer(chain.encode("ascii"), dtype=np.uint8)]


def _lookup(letters: str, first: int, otherwise: int = -1) -> NDArray[np.int32]:
    table = np.full(256, -1, dtype=np.int32)
    table[[ord(c) for c in "ACDEFGHIKLMNPQRSTVWYX"]] = otherwise
    table[[ord(c) for c in letters]] = np.arange(first, first + len(letters))
    return table


T5 = Vocabulary(_lookup("ALGVSREDTIPKFQNYMHWCX", 3), None, 1, 1, 0, None, False)
ESM = Vocabulary(_lookup("LAGVSERTIDPKQNFYMHWCX", 4), 0, 2, None, 1, 1022, True)
# AntiBERTy's vocabulary has no X: its tokenizer answers [UNK], id 1.
BERT = Vocabulary(_lookup("ACDEFGHIKLMNPQRSTVWY", 5, otherwise=1), 2, 3, None, 0, 510, False)
COMPOSITION = Vocabulary(_lookup("ACDEFGHIKLMNPQRSTVWYX", 0), None, None, None, 0, None, False)


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """One run of tokens.

    Attributes
    ----------
    ids : ndarray, shape=(L,), dtype=int32
    weights : ndarray, shape=(L, P), dtype=float32
        Share of each token in each pooling; zero on special tokens, except `cls`.
    """

    ids: NDArray[np.int32]
    weights: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Layout:
    """How sequences of one kind become spans of one alphabet.

    Attributes
    ----------
    kind : {"antibody", "antigen"}
    alphabet : Vocabulary
    long : {"window", "truncate", "error"}
        What happens to a chain of more than `limit` residues.
    """

    kind: Kind
    alphabet: Vocabulary
    long: LongPolicy = "window"

    @property
    def poolings(self) -> tuple[str, ...]:
        """Names of the poolings, in the order of `TokenSpan.weights`."""
        cls = ("cls",) if self.alphabet.has_cls else ()
        chains = ("heavy_mean", "light_mean") if self.kind == "antibody" else ()
        return ("mean", *cls, *chains)

    @property
    def limit(self) -> int | None:
        """Most residues of a chain in one span; None for any number.

        Antigens are windowed for every language model, also for those whose positions have
        no end: attention over a 5,000-residue chain was never trained. Antibody chains are
        windowed only where the encoder cannot take them whole.
        """
        if self.alphabet is COMPOSITION:
            return None
        if self.kind == "antibody":
            return self.alphabet.max_residues
        return min(self.alphabet.max_residues or WINDOW_RESIDUES, WINDOW_RESIDUES)

    def is_long(self, chains: Chains) -> bool:
        """Whether the long-sequence policy touches this sequence."""
        return self.limit is not None and max(map(len, chains)) > self.limit

    def span_lengths(self, chains: Chains) -> list[int]:
        """Tokens in each span, as `spans` would make them."""
        alphabet = self.alphabet
        if alphabet.between is not None and self.kind == "antibody":
            present = sum(map(bool, chains))
            return [sum(map(len, chains)) + present - 1 + alphabet.specials]
        return [
            stop - start + alphabet.specials
            for chain in chains
            if chain
            for start, stop in self._windows(len(chain))
        ]

    def spans(self, chains: Chains) -> list[TokenSpan]:
        """Token ids and pooling weights of one sequence.

        Windows that overlap share a residue's weight equally, so that averaging residue
        vectors over windows first and over residues then is one weighted sum.
        """
        if self.alphabet.between is not None and self.kind == "antibody":
            return [self._joined(chains)]
        present = [(i, chain) for i, chain in enumerate(chains) if chain]
        kept = sum(self._kept(len(chain)) for _, chain in present)
        return [
            span for i, chain in present for span in self._windowed(i, chain, kept, len(present))
        ]

    def _kept(self, residues: int) -> int:
        """Residues of a chain that are encoded at all."""
        return self._windows(residues)[-1][1]

    def _windows(self, residues: int) -> list[tuple[int, int]]:
        size = self.limit
        if size is None or residues <= size:
            return [(0, residues)]
        if self.long == "truncate":
            return [(0, size)]
        if self.long == "error":
            msg = (
                f"{self.kind} chain of {residues} residues: at most {size} fit; "
                "give --long-antigens window"
            )
            raise SequenceTooLong(msg)
        stride = size // 2
        last = -(-(residues - size) // stride)  # ceiling: the first start that reaches the end
        return [(k * stride, min(k * stride + size, residues)) for k in range(last + 1)]

    def _windowed(self, chain_index: int, chain: str, kept: int, chains: int) -> list[TokenSpan]:
        windows = self._windows(len(chain))
        cover = np.zeros(len(chain), dtype=np.float32)
        for start, stop in windows:
            cover[start:stop] += 1
        share = 1 / np.maximum(cover, 1)
        ids = self.alphabet.encode(chain)
        spans = []
        for start, stop in windows:
            span = self._framed(ids[start:stop])
            at = slice(self.alphabet.start is not None, None)
            inner = span.weights[at][: stop - start]
            inner[:, 0] = share[start:stop] / kept
            if self.kind == "antibody":
                inner[:, self.poolings.index(("heavy_mean", "light_mean")[chain_index])] = share[
                    start:stop
                ] / self._kept(len(chain))
            if self.alphabet.has_cls:
                span.weights[0, 1] = 1 / (chains * len(windows))
            spans.append(span)
        return spans

    def _framed(self, ids: NDArray[np.int32]) -> TokenSpan:
        """Put the family's special tokens around residue ids; all weights zero."""
        start = [] if self.alphabet.start is None else [self.alphabet.start]
        end = [] if self.alphabet.end is None else [self.alphabet.end]
        framed = np.concatenate([start, ids, end]).astype(np.int32)
        return TokenSpan(framed, np.zeros((len(framed), len(self.poolings)), dtype=np.float32))

    def _joined(self, chains: Chains) -> TokenSpan:
        """Heavy, separator, light as one span: the paired input of IgT5."""
        heavy, light = chains
        gap = [self.alphabet.between] if heavy and light else []
        ids = np.concatenate([self.alphabet.encode(heavy), gap, self.alphabet.encode(light)])
        span = self._framed(ids.astype(np.int32))
        first_light = len(heavy) + len(gap)
        for name, start, stop in (
            ("heavy_mean", 0, len(heavy)),
            ("light_mean", first_light, first_light + len(light)),
        ):
            span.weights[start:stop, 0] = 1 / (len(heavy) + len(light))
            if stop > start:
                span.weights[start:stop, self.poolings.index(name)] = 1 / (stop - start)
        return span


def check_against_tokenizer(
    layout: Layout, tokenize: Callable[[Chains], Sequence[int]], where: str
) -> None:
    """Compare our ids with the checkpoint's own tokenizer on every residue letter.

    Parameters
    ----------
    tokenize : callable
        Chains of one span to the tokenizer's ids, special tokens included.

    Raises
    ------
    TokenizerMismatch
        Naming the first position that differs.
    """
    probes = [("ACDEFGHIKLMNPQRSTVWYX", "")]
    if layout.alphabet.between is not None:
        probes.append(("EVQLXW", "DIQMTX"))
    for probe in probes:
        chains: Chains = probe if layout.kind == "antibody" else (probe[0],)
        ours = layout.spans(chains)[0].ids.tolist()
        theirs = list(tokenize(chains))
        if ours != theirs:
            at = next(
                (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
                min(len(ours), len(theirs)),
            )
            msg = (
                f"{where}: its tokenizer disagrees with abag's table at position {at} of "
                f"{'|'.join(probe)}: {theirs[at : at + 1]} against {ours[at : at + 1]} "
                f"({len(theirs)} tokens against {len(ours)}); "
                "use a checkpoint of the family that config.json names"
            )
            raise TokenizerMismatch(msg)
