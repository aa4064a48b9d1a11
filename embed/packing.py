"""Chains to token ids, and the weight of each token in each pooling.

An encoder reads spans: tokens that attend to each other and to nothing else. A paired antibody is
one span for IgT5 and two spans for an encoder that takes one chain; a long antigen chain is several
overlapping windows. A pooling is a weighted sum over tokens, so each span carries one weight per
token and pooling, and no later step needs to know about windows. Batches of spans are packed, or
padded for other modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.embed.sequences.chains import RESIDUES, Chains, Kind

if TYPE_CHECKING:
    import torch
    from torch import Tensor

TOKENS_VERSION = 1
"""Part of the fingerprint; changes if the ids, the windows or the pooling weights change."""
WINDOW_RESIDUES = 1022
"""ESM-2 was trained on 1024 tokens, two of them special."""

LongPolicy = Literal["window", "truncate", "error"]
ResidueWeights: TypeAlias = tuple[NDArray[np.float32], ...]
"""Of the residues of each chain of a sequence in a pooling, each shape (L,)."""


class SequenceTooLong(AbagError):
    """A chain is longer than the encoder accepts, and the policy is to refuse it."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token ids and length limits of one encoder family; None where it has none."""

    ids: NDArray[np.int32]  # shape (256,), by a letter's ASCII code; -1 if it is not a residue
    start: int | None = None  # token before each span
    end: int | None = None  # token after each span
    separator: int | None = None  # between heavy and light chain, if a span holds both
    chain_tokens: tuple[int, int] | None = None  # before a heavy and a light chain
    # whether start and end are around each chain, and the separator also where a chain is absent
    frames_chains: bool = False
    pad: int = 0
    max_residues: int | None = None  # most residues of a span that the encoder's positions allow
    # longest antigen chain encoded in one span: attention over longer chains was never trained,
    # even if the positions allow it
    window: int | None = WINDOW_RESIDUES
    has_cls: bool = False  # whether the vector of the start token is a pooling

    @property
    def special_tokens(self) -> int:
        """Number of special tokens of a span with one chain, without `chain_tokens`."""
        return (self.start is not None) + (self.end is not None) + self.frames_chains

    @property
    def between_chains(self) -> int:
        """How many more a span with heavy and light chain has."""
        return 2 if self.frames_chains else (self.separator is not None)

    @property
    def longest_span(self) -> int | None:
        """Most tokens of a span; None for any number."""
        if self.max_residues is None or self.window is None:
            return None
        between = self.between_chains + 2 * (self.chain_tokens is not None)
        return max(self.window, self.max_residues + between) + self.special_tokens

    @classmethod
    def of(
        cls, tokens: Mapping[str, int], *, unknown: str = "", start: str = "", end: str = "",
        separator: str = "", pad: str = "", chain_tokens: tuple[str, str] | None = None,
        **limits: Any,  # noqa: ANN401 - of the fields' own types
    ) -> Self:  # fmt: skip
        """Look up the residues and the named special tokens; `limits` are the other fields.

        Raises
        ------
        KeyError
            If a token is missing. Residues without one have the id of `unknown`.
        """
        ids = np.full(256, -1, dtype=np.int32)
        for letter in RESIDUES:
            ids[ord(letter)] = tokens[letter if letter in tokens else unknown]
        given = {"start": start, "end": end, "separator": separator, "pad": pad}
        limits |= {field: tokens[token] for field, token in given.items() if token}
        if chain_tokens is not None:
            limits["chain_tokens"] = tuple(tokens[token] for token in chain_tokens)
        return cls(ids, **limits)

    def encode(self, chain: str) -> NDArray[np.int32]:
        """Return the residue ids of a chain, shape (L,), without special tokens."""
        return self.ids[np.frombuffer(chain.encode("ascii"), dtype=np.uint8)]


def number_tokens(tokens: str) -> dict[str, int]:
    """Number tokens, separated by spaces, from 0."""
    return {token: i for i, token in enumerate(tokens.split())}


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Tokens that attend to each other: L tokens, P poolings."""

    ids: NDArray[np.int32]  # shape (L,)
    weights: NDArray[np.float32]  # shape (L, P); zero for special tokens, except in ``cls``


@dataclass(frozen=True, slots=True)
class Layout:
    """How sequences of one kind are divided into spans.

    `long` says what happens to a chain of more than `limit` residues.
    """

    kind: Kind
    vocabulary: Vocabulary
    long: LongPolicy = "window"

    @property
    def poolings(self) -> tuple[str, ...]:
        """Names of the poolings, in the order of `TokenSpan.weights`."""
        cls = ("cls",) if self.vocabulary.has_cls else ()
        chains = ("heavy_mean", "light_mean") if self.kind == "antibody" else ()
        return ("mean", *cls, *chains)

    @property
    def limit(self) -> int | None:
        """Most residues of a chain in one span; None for any number.

        Antibody chains are divided only if the encoder cannot take them whole.
        """
        vocabulary = self.vocabulary
        return vocabulary.max_residues if self.kind == "antibody" else vocabulary.window

    @property
    def _pairs(self) -> bool:
        """Whether heavy and light chain share a span, if the encoder takes both at once."""
        return self.kind == "antibody" and self.vocabulary.separator is not None

    def _joins(self, chains: Chains) -> bool:
        return self._pairs and (self.limit is None or sum(map(len, chains)) <= self.limit)

    def is_long(self, chains: Chains) -> bool:
        """Whether the policy for long chains changes how this sequence is encoded."""
        if (limit := self.limit) is None:
            return False
        return (sum(map(len, chains)) if self._pairs else max(map(len, chains))) > limit

    def span_lengths(self, chains: Chains) -> list[int]:
        """Return the number of tokens in each span of one sequence; see `spans`.

        Raises
        ------
        SequenceTooLong
        """
        special = self.vocabulary.special_tokens + bool(self._chain_tokens)
        if self._joins(chains):
            more = self.vocabulary.between_chains + bool(self._chain_tokens)
            between = (sum(map(bool, chains)) - 1) * more
            return [sum(map(len, chains)) + between + special]
        return [
            stop - start + special
            for chain in chains
            if chain
            for start, stop in self._windows(len(chain))
        ]

    def count_tokens(self, sequences: Sequence[Chains]) -> NDArray[np.int64]:
        """Count the tokens of each of N sequences, shape (N,), once per lengths of chains."""
        lengths = [tuple(map(len, chains)) for chains in sequences]
        examples = dict(zip(lengths, sequences, strict=True))
        tokens = {key: sum(self.span_lengths(chains)) for key, chains in examples.items()}
        return np.array([tokens[key] for key in lengths], np.int64)

    def spans(self, chains: Chains, extra: ResidueWeights | None = None) -> list[TokenSpan]:
        """Return token ids and pooling weights of one sequence.

        Overlapping windows share a residue's weight equally: the weighted sum equals the average
        over residues of each residue's average over windows. `extra` holds the weights of the
        residues of each chain in one more pooling, the last.

        Raises
        ------
        SequenceTooLong
            For a long chain if the policy is ``"error"``.
        """
        if self._joins(chains):
            return [self._joined_span(chains, extra)]
        present = [(i, chain) for i, chain in enumerate(chains) if chain]
        encoded = sum(self._encoded_residues(len(chain)) for _, chain in present)
        return [
            span
            for i, chain in present
            for span in self._window_spans(
                i, chain, encoded, len(present), None if extra is None else extra[i]
            )
        ]

    def numbered_spans(
        self, sequences: Iterable[Chains], extra: Sequence[ResidueWeights] | None = None
    ) -> Iterator[tuple[int, TokenSpan]]:
        """Yield the spans of sequences, each with the position of its sequence."""
        for position, chains in enumerate(sequences):
            for span in self.spans(chains, None if extra is None else extra[position]):
                yield position, span

    def _encoded_residues(self, residues: int) -> int:
        """Return how many residues of a chain are encoded: fewer if it is truncated."""
        return self._windows(residues)[-1][1]

    def _windows(self, residues: int) -> list[tuple[int, int]]:
        """Return the first residue of each window of a chain, and one past its last."""
        size = self.limit
        if size is None or residues <= size:
            return [(0, residues)]
        if self.long == "truncate":
            return [(0, size)]
        if self.long == "error":
            msg = (
                f"{self.kind} chain of {residues} residues: the limit is {size}; "
                "give --long-antigens window or truncate"
            )
            raise SequenceTooLong(msg)
        stride = size // 2
        last = -(-(residues - size) // stride)  # ceiling: the first start that reaches the end
        return [(k * stride, min(k * stride + size, residues)) for k in range(last + 1)]

    def _window_spans(
        self, chain_index: int, chain: str, encoded: int, chains: int,
        extra_L: NDArray[np.float32] | None,
    ) -> list[TokenSpan]:  # fmt: skip
        """Return the windows of one chain; `encoded` counts the residues of all `chains`."""
        windows = self._windows(len(chain))
        cover_L = np.zeros(len(chain), dtype=np.float32)
        for start, stop in windows:
            cover_L[start:stop] += 1
        share_L = 1 / np.maximum(cover_L, 1)
        ids_L = self.vocabulary.encode(chain)
        spans = []
        for start, stop in windows:
            span, (first,) = self._framed({chain_index: ids_L[start:stop]}, extra_L is not None)
            residues_LP = span.weights[first : first + stop - start]
            residues_LP[:, 0] = share_L[start:stop] / encoded
            if self.kind == "antibody":
                pooling = self.poolings.index(("heavy_mean", "light_mean")[chain_index])
                own = self._encoded_residues(len(chain))
                residues_LP[:, pooling] = share_L[start:stop] / own
            if extra_L is not None:
                residues_LP[:, -1] = share_L[start:stop] * extra_L[start:stop]
            if self.vocabulary.has_cls:
                span.weights[0, 1] = 1 / (chains * len(windows))
            spans.append(span)
        return spans

    @property
    def _chain_tokens(self) -> tuple[int, int] | None:
        return self.vocabulary.chain_tokens if self.kind == "antibody" else None

    def _framed(
        self, ids: Mapping[int, NDArray[np.int32]], extra: bool
    ) -> tuple[TokenSpan, list[int]]:
        """Put special tokens around the residue ids of chains, with all weights zero.

        `ids` maps 0 (heavy) and 1 (light) to residue ids. Also returns the position of the first
        residue of each.
        """
        pieces: list[Sequence[int] | NDArray[np.int32]] = []
        first: list[int] = []
        for piece in self._pieces(ids):
            if isinstance(piece, np.ndarray):
                first.append(sum(map(len, pieces)))
            pieces.append(piece)
        framed_L = np.concatenate(pieces).astype(np.int32)
        weights = np.zeros((len(framed_L), len(self.poolings) + extra), dtype=np.float32)
        return TokenSpan(framed_L, weights), first

    def _pieces(
        self, ids: Mapping[int, NDArray[np.int32]]
    ) -> Iterator[Sequence[int] | NDArray[np.int32]]:
        """Yield the parts of a span in order: special tokens, and an array for each chain."""
        vocabulary = self.vocabulary
        start, end, separator = (
            () if token is None else (token,)
            for token in (vocabulary.start, vocabulary.end, vocabulary.separator)
        )
        if vocabulary.frames_chains:
            pair = (ids.get(0), ids.get(1)) if self.kind == "antibody" else (*ids.values(), None)
            for chain, before in zip(pair, ((), separator), strict=True):
                yield before
                if chain is not None:
                    yield from (start, chain, end)
            return
        yield start
        for place, (index, chain) in enumerate(ids.items()):
            yield separator if place else ()
            yield (self._chain_tokens[index],) if self._chain_tokens else ()
            yield chain
        yield end

    def _joined_span(self, chains: Chains, extra: ResidueWeights | None) -> TokenSpan:
        """Return heavy and light chain as one span: the paired input of IgT5 and IgBert."""
        present = {i: self.vocabulary.encode(chain) for i, chain in enumerate(chains) if chain}
        span, first = self._framed(present, extra is not None)
        for (i, ids_L), start in zip(present.items(), first, strict=True):
            own = slice(start, start + len(ids_L))
            span.weights[own, 0] = 1 / sum(map(len, chains))
            pooling = self.poolings.index(("heavy_mean", "light_mean")[i])
            span.weights[own, pooling] = 1 / len(ids_L)
            if extra is not None:
                span.weights[own, -1] = extra[i]
        if self.vocabulary.has_cls:
            span.weights[0, 1] = 1
        return span


# --- batches --------------------------------------------------------------------------------------


class BatchTooLarge(AbagError):
    """A single span exceeds the token budget."""


def longest_first(lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the stable order by descending length, shape (N,): memory peaks in the first batch."""
    return np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Spans laid end to end, without padding: T tokens, N spans, S sequences, P poolings."""

    ids: NDArray[np.int32]  # shape (T,)
    offsets: NDArray[np.int32]  # shape (N + 1,); span i is ids[offsets[i]:offsets[i + 1]]
    weights: NDArray[np.float32]  # shape (T, P): of each token in each pooling
    sequences: NDArray[np.int64]  # shape (S,), in order of their first token
    bounds: NDArray[np.int32]  # shape (S + 1,); sequence s owns tokens bounds[s]:bounds[s + 1]
    continues: bool  # whether the last sequence has further spans in the next batch

    @property
    def max_length(self) -> int:
        """Tokens in the longest span."""
        return int(np.diff(self.offsets).max())


def fill_batches(
    spans: Iterable[tuple[int, TokenSpan]], budget_tokens: int
) -> Iterator[PackedBatch]:
    """Fill batches of at most `budget_tokens` with spans; those of a sequence are consecutive.

    Raises
    ------
    BatchTooLarge
        If one span alone exceeds the budget.
    """
    held: list[tuple[int, TokenSpan]] = []
    tokens = 0
    for sequence, span in spans:
        length = len(span.ids)
        if length > budget_tokens:
            msg = (
                f"--batch-tokens {budget_tokens}: a sequence has {length} tokens; "
                f"give --batch-tokens {length} or more"
            )
            raise BatchTooLarge(msg)
        if tokens + length > budget_tokens:
            yield pack_spans(held, continues=held[-1][0] == sequence)
            held, tokens = [], 0
        held.append((sequence, span))
        tokens += length
    if held:
        yield pack_spans(held)


def pack_spans(spans: Sequence[tuple[int, TokenSpan]], *, continues: bool = False) -> PackedBatch:
    """Lay spans, each given with its sequence, end to end."""
    offsets = np.zeros(len(spans) + 1, dtype=np.int32)
    np.cumsum([len(span.ids) for _, span in spans], out=offsets[1:])
    owner = np.array([sequence for sequence, _ in spans], dtype=np.int64)
    first = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    return PackedBatch(
        ids=np.concatenate([span.ids for _, span in spans]),
        offsets=offsets,
        weights=np.concatenate([span.weights for _, span in spans]),
        sequences=owner[first],
        bounds=np.r_[offsets[first], offsets[-1]].astype(np.int32),
        continues=continues,
    )


def pad_batch(
    batch: PackedBatch, pad_id: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy a batch into one padded row per span, L tokens wide.

    Returns
    -------
    ids_NL : Tensor, shape=(N, L), dtype=int64
    is_token_NL : Tensor, shape=(N, L), dtype=bool
        False is padding.
    """
    import torch

    lengths_N = torch.from_numpy(batch.offsets).diff()
    is_token_NL = torch.arange(batch.max_length)[None, :] < lengths_N[:, None]
    ids_NL = torch.full(is_token_NL.shape, pad_id, dtype=torch.int64)
    ids_NL[is_token_NL] = torch.from_numpy(batch.ids).long()
    return ids_NL.to(device), is_token_NL.to(device)


def pool_tokens(hidden_TD: Tensor, weights_TP: Tensor, bounds: Tensor) -> Tensor:
    """Sum each sequence's token vectors with the weights of each pooling.

    Parameters
    ----------
    hidden_TD : Tensor, shape=(T, D), dtype=float32, bfloat16 or float16
    weights_TP : Tensor, shape=(T, P), dtype=float32
    bounds : Tensor, shape=(S + 1,), dtype=int64
        Sequence ``s`` owns tokens ``bounds[s]:bounds[s + 1]``; none is empty.

    Returns
    -------
    Tensor, shape=(S, P, D), dtype=float32
        Summed in fp32 whatever the input type.
    """
    import torch

    weighted = (hidden_TD.float() * w_T[:, None] for w_T in weights_TP.T)
    sums = [torch.segment_reduce(x_TD, "sum", offsets=bounds, axis=0) for x_TD in weighted]
    return torch.stack(sums, dim=1)


class LayerPooling:
    """Pools the token vectors of selected layers while an encoder runs.

    Layers are numbered as in transformers' ``hidden_states``: 1 is the output of the first layer.
    Only the output of the last layer is normalised. `weights_TP` and `bounds` are those of
    `pool_tokens`.
    """

    def __init__(self, layers: Sequence[int], weights_TP: Tensor, bounds: Tensor) -> None:
        self.layers = frozenset(layers)
        self._weights_TP, self._bounds = weights_TP, bounds
        self.pooled: dict[int, Tensor] = {}  # by layer: shape (S, P, D), dtype float32

    def add(self, layer: int, hidden_TD: Tensor) -> None:
        """Pool the token vectors of a layer, shape (T, D), if it is one of those selected."""
        if layer in self.layers:
            self.pooled[layer] = pool_tokens(hidden_TD, self._weights_TP, self._bounds)
