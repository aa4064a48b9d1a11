"""Chains to token ids, and the weight of each token in each pooling.

An encoder reads spans: tokens that attend to each other and to nothing else. A paired antibody is
one span for IgT5 and two spans for an encoder that takes one chain; a long antigen chain is several
overlapping windows. A pooling is a weighted sum over tokens, so each span carries one weight per
token and pooling, and no later step needs to know about windows. Batches of spans are packed, or
padded for other modules.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.embed.tables.chains import RESIDUES, Chains, Kind

if TYPE_CHECKING:
    import torch
    from torch import Tensor

TOKENS_VERSION = 1
"""Part of the fingerprint; changes if the ids, the windows or the pooling weights change."""
WINDOW_RESIDUES = 1022
"""ESM-2 was trained on 1024 tokens, two of them special."""
_CHAIN_MEANS = ("heavy_mean", "light_mean")

LongPolicy = Literal["window", "truncate", "error"]
ResidueWeights: TypeAlias = tuple[NDArray[np.float32], ...]
"""Of the residues of each chain of a sequence in a pooling, each shape (L,)."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token ids and length limits of one encoder family; None where it has none."""

    ids: NDArray[np.int32]
    """Token id by the ASCII code of a letter: shape (256,); -1 if it is not a residue."""
    start: int | None = None
    """Token before each span."""
    end: int | None = None
    """Token after each span."""
    separator: int | None = None
    """Token between heavy and light chain, if a span holds both."""
    chain_tokens: tuple[int, int] | None = None
    """Tokens before a heavy and a light chain."""
    frames_chains: bool = False
    """Whether start and end enclose each chain, and the separator stands for an absent one too."""
    pad: int = 0
    max_residues: int | None = None
    """Most residues of a span that the encoder's positions allow."""
    window: int | None = WINDOW_RESIDUES
    """Longest antigen chain encoded in one span: attention over longer chains was never trained,
    even if the positions allow it."""
    has_cls: bool = False
    """Whether the vector of the start token is a pooling."""

    @property
    def special_tokens(self) -> int:
        """Number of special tokens of a span with one chain, without `chain_tokens`."""
        return (self.start is not None) + (self.end is not None) + self.frames_chains

    @property
    def between_chains(self) -> int:
        """Number of special tokens that a span with heavy and light chain has in addition."""
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
        cls,
        tokens: Mapping[str, int],
        *,
        unknown: str = "",
        start: str = "",
        end: str = "",
        separator: str = "",
        pad: str = "",
        chain_tokens: tuple[str, str] | None = None,
        **limits: Any,  # noqa: ANN401 - of the fields' own types
    ) -> Self:
        """Look up the ids of residues and special tokens in a vocabulary.

        Parameters
        ----------
        tokens : mapping
            Ids by the texts of tokens.
        unknown : str
            Token of a residue that the vocabulary does not have.
        start, end, separator, pad, chain_tokens
            Texts of the special tokens; empty or None: there is none.
        **limits
            Other fields of the class.

        Raises
        ------
        KeyError
            If a token is not in the vocabulary.
        """
        ids = np.full(256, -1, dtype=np.int32)
        for letter in RESIDUES:
            ids[ord(letter)] = tokens[letter if letter in tokens else unknown]
        special = {"start": start, "end": end, "separator": separator, "pad": pad}
        limits |= {field: tokens[token] for field, token in special.items() if token}
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

    ids: NDArray[np.int32]
    """Token ids: shape (L,)."""
    weights: NDArray[np.float32]
    """Weight of each token in each pooling: shape (L, P); special tokens only count in ``cls``."""


class Piece(NamedTuple):
    """Residues of a chain that share a span."""

    chain: int
    """Index of the chain in its sequence."""
    start: int
    """First residue."""
    stop: int
    """One past the last residue."""


@dataclass(frozen=True, slots=True)
class TokenLayout:
    """The division of sequences of one kind into spans."""

    kind: Kind
    vocabulary: Vocabulary
    long: LongPolicy = "window"
    """Policy for chains of more than `limit` residues."""
    _known: dict[tuple[int, ...], list[tuple[list[Piece], NDArray[np.float32]]]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """Pieces and weights of the spans of sequences, by the lengths of their chains."""

    @property
    def poolings(self) -> tuple[str, ...]:
        """Names of the poolings, in the order of `TokenSpan.weights`."""
        cls = ("cls",) if self.vocabulary.has_cls else ()
        return ("mean", *cls, *(_CHAIN_MEANS if self.kind == "antibody" else ()))

    @property
    def limit(self) -> int | None:
        """Most residues of a span; None for any number."""
        vocabulary = self.vocabulary  # antibodies are divided only if it cannot take them whole
        return vocabulary.max_residues if self.kind == "antibody" else vocabulary.window

    @property
    def _pairs(self) -> bool:
        """Whether heavy and light chain share a span, if the encoder takes both at once."""
        return self.kind == "antibody" and self.vocabulary.separator is not None

    @property
    def _chain_tokens(self) -> tuple[int, int] | None:
        return self.vocabulary.chain_tokens if self.kind == "antibody" else None

    def is_long(self, chains: Chains) -> bool:
        """Return whether the policy for long chains changes how this sequence is encoded."""
        limit = self.limit
        return limit is not None and (sum if self._pairs else max)(map(len, chains)) > limit

    def span_lengths(self, chains: Chains) -> list[int]:
        """Return the number of tokens in each span of one sequence; see `spans`."""
        special = self.vocabulary.special_tokens + bool(self._chain_tokens)
        special_between = self.vocabulary.between_chains + bool(self._chain_tokens)
        lengths = []
        for pieces in self._divide(chains):
            residues = sum(piece.stop - piece.start for piece in pieces)
            lengths.append(residues + special + (len(pieces) - 1) * special_between)
        return lengths

    def count_tokens(self, sequences: Sequence[Chains]) -> NDArray[np.int64]:
        """Count the tokens of each of N sequences, shape (N,), once per lengths of chains."""
        chain_lengths = [tuple(map(len, chains)) for chains in sequences]
        examples = dict(zip(chain_lengths, sequences, strict=True))
        tokens = {lengths: sum(self.span_lengths(chains)) for lengths, chains in examples.items()}
        return np.array([tokens[lengths] for lengths in chain_lengths], np.int64)

    def spans(self, chains: Chains, extra: ResidueWeights | None = None) -> list[TokenSpan]:
        """Return token ids and pooling weights of one sequence.

        Overlapping windows share a residue's weight equally: the weighted sum equals the average
        over residues of each residue's average over windows. `extra` holds the weights of the
        residues of each chain in one more pooling, the last.
        """
        lengths = tuple(map(len, chains))
        if extra is None and lengths in self._known:
            spans = []
            for pieces, weights_LP in self._known[lengths]:
                spans.append(TokenSpan(self._tokens(chains, pieces)[0], weights_LP))
            return spans
        divided = self._divide(chains)
        windows = [np.zeros(len(chain), np.float32) for chain in chains]  # that hold a residue
        for piece in itertools.chain.from_iterable(divided):
            windows[piece.chain][piece.start : piece.stop] += 1
        encoded = [np.count_nonzero(windows_L) for windows_L in windows]  # fewer if truncated
        share = [1 / np.maximum(windows_L, 1) for windows_L in windows]
        spans_of_chain = Counter(pieces[0].chain for pieces in divided)  # by the first of each
        n_poolings = len(self.poolings) + (extra is not None)
        spans = []
        for pieces in divided:
            ids_L, first = self._tokens(chains, pieces)
            weights_LP = np.zeros((len(ids_L), n_poolings), np.float32)
            for (i, start, stop), at in zip(pieces, first, strict=True):
                piece_LP = weights_LP[at : at + stop - start]  # a view
                share_L = share[i][start:stop]
                piece_LP[:, 0] = share_L / sum(encoded)
                if self.kind == "antibody":
                    chain_mean = self.poolings.index(_CHAIN_MEANS[i])
                    piece_LP[:, chain_mean] = share_L / encoded[i]
                if extra is not None:
                    piece_LP[:, -1] = share_L * extra[i][start:stop]
            if self.vocabulary.has_cls:
                spans_beside = spans_of_chain[pieces[0].chain]  # windows of the same chain
                weights_LP[0, 1] = 1 / (len(spans_of_chain) * spans_beside)
            spans.append(TokenSpan(ids_L, weights_LP))
        if extra is None:
            weights = [span.weights for span in spans]
            self._known[lengths] = [*zip(divided, weights, strict=True)]
        return spans

    def _tokens(
        self, chains: Chains, pieces: Sequence[Piece]
    ) -> tuple[NDArray[np.int32], list[int]]:
        """Return the token ids of a span, and where each of its pieces begins."""
        residues = {}
        for i, start, stop in pieces:
            residues[i] = self.vocabulary.encode(chains[i][start:stop])
        return self._frame(residues)

    def pieces(self, chains: Chains) -> list[Piece]:
        """Return the pieces of chains that the residue tokens of `spans` are, in their order.

        Windows overlap.
        """
        return list(itertools.chain.from_iterable(self._divide(chains)))

    def numbered_spans(
        self, sequences: Iterable[Chains], extra: Sequence[ResidueWeights] | None = None
    ) -> Iterator[tuple[int, TokenSpan]]:
        """Yield the spans of sequences, each with the position of its sequence."""
        for position, chains in enumerate(sequences):
            for span in self.spans(chains, None if extra is None else extra[position]):
                yield position, span

    def _divide(self, chains: Chains) -> list[list[Piece]]:
        """Return the pieces of each span."""
        if self._pairs and (self.limit is None or sum(map(len, chains)) <= self.limit):
            return [[Piece(i, 0, len(chain)) for i, chain in enumerate(chains) if chain]]
        divided = []
        for i, chain in enumerate(chains):
            if chain:
                divided += [[Piece(i, start, stop)] for start, stop in self._windows(len(chain))]
        return divided

    def _windows(self, residues: int) -> list[tuple[int, int]]:
        """Return the first residue of each window of a chain, and one past its last."""
        size = self.limit
        if size is None or residues <= size:
            return [(0, residues)]
        if self.long == "truncate":
            return [(0, size)]
        stride = size // 2
        last = -(-(residues - size) // stride)  # ceiling: the first start that reaches the end
        starts = [k * stride for k in range(last + 1)]
        return [(start, min(start + size, residues)) for start in starts]

    def _frame(
        self, residues: Mapping[int, NDArray[np.int32]]
    ) -> tuple[NDArray[np.int32], list[int]]:
        """Put special tokens around the ids of chains; also say where each chain begins."""
        vocabulary = self.vocabulary
        chain_tokens = self._chain_tokens
        start, end, separator = (
            [] if token is None else [token]
            for token in (vocabulary.start, vocabulary.end, vocabulary.separator)
        )
        parts: list[list[int] | NDArray[np.int32]] = []
        if vocabulary.frames_chains:
            pair = [residues.get(0), residues.get(1)]
            pair = pair if self.kind == "antibody" else [*residues.values(), None]
            for ids_L, before in zip(pair, ([], separator), strict=True):
                parts += [before] if ids_L is None else [before, start, ids_L, end]
        else:
            parts.append(start)
            for place, (i, ids_L) in enumerate(residues.items()):
                chain_token = [chain_tokens[i]] if chain_tokens else []
                parts += [separator if place else [], chain_token, ids_L]
            parts.append(end)
        first = []
        begin = 0
        for part in parts:
            if isinstance(part, np.ndarray):
                first.append(begin)
            begin += len(part)
        return np.concatenate(parts).astype(np.int32), first


# --- batches --------------------------------------------------------------------------------------


def longest_first(lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the stable order by descending length, shape (N,): memory peaks in the first batch."""
    return np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Spans laid end to end, without padding: T tokens, N spans, S sequences, P poolings."""

    ids: NDArray[np.int32]
    """Token ids: shape (T,)."""
    offsets: NDArray[np.int32]
    """Shape (N + 1,); span i is ``ids[offsets[i]:offsets[i + 1]]``."""
    weights: NDArray[np.float32]
    """Weight of each token in each pooling: shape (T, P)."""
    sequences: NDArray[np.int64]
    """Sequences of the batch, by number, in order of their first token: shape (S,)."""
    bounds: NDArray[np.int32]
    """Shape (S + 1,); sequence s owns tokens ``bounds[s]:bounds[s + 1]``."""
    continues: bool
    """Whether the last sequence has further spans in the next batch."""

    @property
    def completed(self) -> NDArray[np.int64]:
        """Sequences of which no further span follows, by number."""
        return self.sequences[: len(self.sequences) - self.continues]

    @property
    def max_length(self) -> int:
        """Tokens of the longest span."""
        return int(np.diff(self.offsets).max())


def fill_batches(
    spans: Iterable[tuple[int, TokenSpan]], budget_tokens: int
) -> Iterator[PackedBatch]:
    """Fill batches in the order of the spans, each given with the number of its sequence.

    A batch has at most `budget_tokens` tokens, or one span that is longer.
    """
    held: list[tuple[int, TokenSpan]] = []
    tokens = 0
    for sequence, span in spans:
        length = len(span.ids)
        if held and tokens + length > budget_tokens:
            yield pack_spans(held, continues=held[-1][0] == sequence)
            held = []
            tokens = 0
        held.append((sequence, span))
        tokens += length
    if held:
        yield pack_spans(held)


def pack_spans(spans: Sequence[tuple[int, TokenSpan]], *, continues: bool = False) -> PackedBatch:
    """Lay spans, each given with the number of its sequence, end to end.

    With `continues`, the last sequence has further spans in the next batch.
    """
    sequences, token_spans = zip(*spans, strict=True)
    ids = [span.ids for span in token_spans]
    weights = [span.weights for span in token_spans]
    offsets = np.zeros(len(spans) + 1, dtype=np.int32)
    np.cumsum([*map(len, ids)], out=offsets[1:])
    owner = np.array(sequences, dtype=np.int64)
    first = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    return PackedBatch(
        ids=np.concatenate(ids),
        offsets=offsets,
        weights=np.concatenate(weights),
        sequences=owner[first],
        bounds=np.r_[offsets[first], offsets[-1]].astype(np.int32),
        continues=continues,
    )


def pad_batch(
    batch: PackedBatch, pad_id: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy a batch to a device, into one padded row per span.

    Returns
    -------
    ids_NL : Tensor, shape=(N, L), dtype=int64
    is_token_NL : Tensor, shape=(N, L), dtype=bool
        False where there is padding.
    """
    import torch

    lengths_N = torch.from_numpy(batch.offsets).diff()
    is_token_NL = torch.arange(batch.max_length)[None, :] < lengths_N[:, None]
    ids_NL = torch.full(is_token_NL.shape, pad_id, dtype=torch.int64)
    ids_NL[is_token_NL] = torch.from_numpy(batch.ids).long()
    return ids_NL.to(device), is_token_NL.to(device)


def pool_tokens(hidden_TD: Tensor, weights_TP: Tensor, bounds: Tensor) -> Tensor:
    """Sum the weighted vectors of the tokens of each sequence.

    Parameters
    ----------
    hidden_TD : Tensor, shape=(T, D)
    weights_TP : Tensor, shape=(T, P), dtype=float32
    bounds : Tensor, shape=(S + 1,), dtype=int64
        Sequence ``s`` is tokens ``bounds[s]:bounds[s + 1]``.

    Returns
    -------
    Tensor, shape=(S, P, D), dtype=float32
    """
    import torch

    sums = []
    for w_T in weights_TP.T:  # one product at a time: each takes as much memory as the vectors
        weighted_TD = hidden_TD.float() * w_T[:, None]
        sums.append(torch.segment_reduce(weighted_TD, "sum", offsets=bounds, axis=0))
    return torch.stack(sums, dim=1)


class LayerPooling:
    """A sink that pools the token vectors of selected layers while an encoder runs.

    Layers are numbered as in transformers' ``hidden_states``: 1 is the output of the first layer.
    Only the output of the last layer is normalised.
    """

    def __init__(self, layers: Sequence[int], weights_TP: Tensor, bounds: Tensor) -> None:
        self.layers = frozenset(layers)
        self._weights_TP = weights_TP
        self._bounds = bounds
        self.pooled: dict[int, Tensor] = {}  # by layer: shape (S, P, D), dtype float32

    def add(self, layer: int, hidden_TD: Tensor) -> None:
        """Pool the token vectors of a layer, shape (T, D), if it is one of those selected."""
        if layer in self.layers:
            self.pooled[layer] = pool_tokens(hidden_TD, self._weights_TP, self._bounds)
