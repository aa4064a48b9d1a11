"""Fingerprints: what decides the meaning of an encoder's vectors, without loading the encoder.

Part of it are token ids. abag looks tokens up in its own tables, and compares them here with the
vocabulary files of the checkpoint: if those number tokens otherwise, it was trained on other ids,
and its vectors would be wrong. torch is not imported.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from abag.core.errors import EncoderError, MissingPackage
from abag.core.messages import first_line
from abag.embed.encoders.checkpoints import find_checkpoint
from abag.embed.encoders.families import FAMILIES
from abag.embed.encoders.family import Backend, EncoderShape, Family, LanguageHead
from abag.embed.encoders.packing import TOKENS_VERSION, LongPolicy, TokenLayout, Vocabulary
from abag.embed.encoders.registry import EncoderNotFound
from abag.embed.encoders.weights import (
    EncoderCheckpoint,
    EncoderTensors,
    read_adapter_record,
    weight_files,
    weights_digest,
    with_adapter,
)
from abag.embed.tables.chains import RESIDUES, STANDARD_RESIDUES, Kind

POOLING_VERSION = 1
"""Part of the fingerprint; changes if the meaning of a pooled vector changes."""
HEAD_VERSION = 1
"""Part of the digest of a head; changes if the meaning of a likelihood changes."""
_Ids = Iterable[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Identity:
    """An encoder that is chosen but not loaded."""

    checkpoint: EncoderCheckpoint
    layout: TokenLayout
    """How sequences become tokens."""
    fingerprint: str
    """Hash of `meaning`: 32 hexadecimal digits."""
    meaning: dict[str, object]
    """Everything that decides what its vectors mean."""

    @property
    def family(self) -> Family:
        """Family of the encoder."""
        return FAMILIES[self.checkpoint.family]

    @property
    def shape(self) -> EncoderShape:
        """Sizes of the encoder."""
        return self.family.shape(self.checkpoint.config)

    def info(self) -> dict[str, object]:
        """Return the description of the encoder that its folder in a store keeps."""
        return {
            "name": self.checkpoint.name,
            "fingerprint": self.fingerprint,
            "origin": self.checkpoint.origin,
            "random_weights": self.checkpoint.random,
            **self.meaning,
        }


def identify(
    name: str, kind: Kind, long: LongPolicy = "window", adapter: Path | str | None = None
) -> Identity:
    """Find an encoder and compute its fingerprint.

    Parameters
    ----------
    name : str
        Alias, hub name or checkpoint folder.
    kind : {"antibody", "antigen"}
        The kind of sequence that it is for.
    long : {"window", "truncate", "error"}
        Policy for chains that are longer than it takes at once.
    adapter : path, optional
        Folder of an adapter to merge into its weights.

    Raises
    ------
    EncoderError
        If the encoder is not available, or its files or those of the adapter cannot be used.
    """
    if adapter is None:
        checkpoint = find_checkpoint(name)
        weights = weights_digest(checkpoint)
    else:
        folder = Path(adapter)
        record = read_adapter_record(folder, kind)  # before anything is downloaded
        try:
            checkpoint = find_checkpoint(name)
        except EncoderNotFound as error:
            msg = f"{error} {folder} was trained on {record['sides'][kind]['encoder']}."
            raise EncoderNotFound(msg) from error
        weights = weights_digest(checkpoint)
        checkpoint = with_adapter(checkpoint, weights, folder, record, kind)
    family = FAMILIES[checkpoint.family]
    layout = TokenLayout(kind, vocabulary_of(checkpoint), long)
    # "error" accepts only sequences that fit into one window
    policy = "truncate" if long == "truncate" else "window"
    meaning: dict[str, object] = {
        "weights": weights,
        "family": checkpoint.family,
        "tokens": TOKENS_VERSION,
        "pooling": POOLING_VERSION,
        "long": f"{policy}-{layout.limit}" if layout.limit else "whole",
        "adapter": checkpoint.adapter.digest if checkpoint.adapter else None,
    }
    if settings := family.settings(checkpoint.config):
        meaning["config"] = settings
    # else the ids are those of the family, which TOKENS_VERSION stands for
    if layout.vocabulary is not family.vocabulary:
        meaning["ids"] = layout.spans((RESIDUES,))[0].ids.tolist()
    return Identity(checkpoint, layout, _digest(meaning), meaning)


def _digest(meaning: Mapping[str, object]) -> str:
    canonical = json.dumps(meaning, sort_keys=True).encode()
    return hashlib.blake2b(canonical, digest_size=16).hexdigest()


def check_backend(identity: Identity, backend: Backend, *, layers: bool = False) -> None:
    """Check that a backend can run an encoder, and pool its inner layers if `layers` is true.

    Raises
    ------
    EncoderError
        If it cannot, or abag has not the layers that config.json describes.
    MissingPackage
        If FAESM is asked for and cannot be imported.
    """
    identity.family.checked_config(identity.checkpoint)
    if backend != "faesm":
        return
    if layers:
        msg = "backend faesm with --layers: FAESM returns the last layer only; give packed"
        raise EncoderError(msg)
    if "faesm" not in identity.family.backends:
        msg = (
            f"backend faesm with encoder {identity.checkpoint.name}: its family is "
            f"{identity.family.name}, and FAESM runs only ESM-2; give packed or reference"
        )
        raise EncoderError(msg)
    import_faesm()


def import_faesm() -> ModuleType:
    """Import FAESM's module of ESM-2.

    Raises
    ------
    MissingPackage
        If it is not installed, or cannot be imported here.
    """
    try:
        # FAESM prints to stdout if flash-attn is missing, which would break --json
        with redirect_stdout(io.StringIO()):
            import faesm.esm
    # RuntimeError, AssertionError: with flash-attn installed, the import needs a CUDA device
    except (ImportError, RuntimeError, AssertionError) as error:
        msg = (
            f"--antigen-backend faesm: cannot import FAESM ({first_line(error)}); expected faesm "
            "0.1.1 with transformers 4.53. Run pip install 'abag[faesm]' in a separate "
            "environment, or omit the option."
        )
        raise MissingPackage(msg) from error
    return faesm.esm  # type: ignore[no-any-return]


# --- the head of the language model, which gives likelihoods and does not change vectors ----------


def head_digest(checkpoint: EncoderCheckpoint) -> str:
    """Hash the head of a checkpoint's language model: 32 hexadecimal digits.

    Raises
    ------
    EncoderError
        If the encoder has no language model, or the checkpoint lacks the head's weights.
    """
    family, head = head_of(checkpoint)
    meaning = {
        "head": HEAD_VERSION,
        "weights": weights_digest(head_checkpoint(checkpoint)),
        "tied": head.is_tied(family.complete(checkpoint.config)),
    }
    return _digest(meaning)


def head_of(checkpoint: EncoderCheckpoint) -> tuple[Family, LanguageHead]:
    """Return the family of a checkpoint and its head; `EncoderError` without a head."""
    family = FAMILIES[checkpoint.family]
    if family.head is None:
        msg = (
            f"--loglik: {checkpoint.name} is an encoder only, and has no language model that gives "
            "probabilities of residues; expected an encoder such as esm2-650m, esm1v-1, antiberty "
            "or igbert. Leave out --loglik, or give --kind with the other encoder only."
        )
        raise EncoderError(msg)
    return family, family.head


def head_checkpoint(checkpoint: EncoderCheckpoint) -> EncoderCheckpoint:
    """Return a checkpoint that holds the head's tensors only; `EncoderError` if it has none."""
    family, head = head_of(checkpoint)
    names = head.weight_names(family.complete(checkpoint.config))
    assert checkpoint.folder is not None
    files = weight_files(checkpoint.folder, names) or checkpoint.weights
    head_only = replace(checkpoint, weights=files, names=names, adapter=None)
    with EncoderTensors(head_only) as tensors:
        missing = sorted(set(names.only) - tensors.read.keys())
    if missing:
        msg = (
            f"--loglik: {checkpoint.origin} holds the encoder without the head of its language "
            f"model ({missing[0]} is missing); expected weights as of a model for masked tokens, "
            "such as EsmForMaskedLM. Leave out --loglik, or give such a checkpoint."
        )
        raise EncoderError(msg)
    return head_only


# --- token ids ------------------------------------------------------------------------------------


def vocabulary_of(checkpoint: EncoderCheckpoint) -> Vocabulary:
    """Return the token ids of a checkpoint, after a comparison with its files.

    Raises
    ------
    EncoderError
        If its tokenizer cannot be read, or numbers tokens otherwise than abag.
    """
    family = FAMILIES[checkpoint.family]
    if checkpoint.folder is None or not family.tokens:
        return family.vocabulary
    files = _read_files(checkpoint.folder)
    if family.read_vocabulary is not None:
        return _read_vocabulary(family, files, checkpoint)
    _refuse_added_tokens(family, files, checkpoint)
    used = _used_tokens(family)
    if (disagreement := _disagreement(files, used)) is not None:
        token, in_files = disagreement
        theirs = " or ".join(map(str, sorted(in_files))) or "none"
        ours = "none" if used[token] is None else str(used[token])
        msg = (
            f"{checkpoint.origin}: its tokenizer disagrees with abag's vocabulary: the id of "
            f"{token} is {theirs}, expected {ours}. Use a "
            "checkpoint of the family that config.json names, with all files of its tokenizer."
        )
        raise EncoderError(msg)
    return family.vocabulary


def _disagreement(
    files: list[Mapping[str, int]], used: Mapping[str, int | None]
) -> tuple[str, set[int]] | None:
    """Find the first token that files number otherwise; return it with its ids there."""
    for token, wanted in used.items():
        ids_of_token = {ids[token] for ids in files if token in ids}
        if ids_of_token != (set() if wanted is None else {wanted}):
            return token, ids_of_token
    return None


def _refuse_added_tokens(
    family: Family, files: list[Mapping[str, int]], checkpoint: EncoderCheckpoint
) -> None:
    """Refuse a checkpoint of a family that its vocab_size tells apart, and that has another one."""
    for other in FAMILIES.values():
        size = other.own_values.get("vocab_size")
        if other is family or other.model_type != family.model_type or size is None:
            continue
        used = _used_tokens(other)
        is_read_otherwise = any(family.tokens.get(token) != i for token, i in used.items())
        if is_read_otherwise and _disagreement(files, used) is None:
            msg = (
                f"{checkpoint.origin}: its tokenizer is that of {other.name} encoders, of which "
                f"vocab_size is {size}; config.json has {checkpoint.config['vocab_size']}. Remove "
                f"the tokens that were added, by model.resize_token_embeddings({size}), and save "
                "it again."
            )
            raise EncoderError(msg)


def _used_tokens(family: Family) -> dict[str, int | None]:
    """Return the id of each token that spans are made of; None for a residue without a token."""
    vocabulary = family.vocabulary
    texts = {i: token for token, i in family.tokens.items()}
    special = (vocabulary.start, vocabulary.end, vocabulary.separator)
    ids = [*special, *(vocabulary.chain_tokens or ()), *vocabulary.encode(RESIDUES).tolist()]
    used: dict[str, int | None] = {texts[i]: i for i in ids if i is not None}
    for letter in RESIDUES:
        if letter not in family.tokens:
            used[letter] = None
    return used


def _read_vocabulary(
    family: Family, files: list[Mapping[str, int]], checkpoint: EncoderCheckpoint
) -> Vocabulary:
    """Make the vocabulary of a family whose ids only the files of a checkpoint say."""
    assert family.read_vocabulary is not None
    ids: dict[str, int] = {}
    for ids_of_file in reversed(files):  # the first wins
        ids |= ids_of_file
    missing = [letter for letter in STANDARD_RESIDUES if letter not in ids]
    try:
        vocabulary = family.read_vocabulary(ids)
    except KeyError as error:
        missing.insert(0, str(error.args[0]))
    problem = f"lacks {', '.join(missing)}" if missing else ""
    if not problem:
        size = int(checkpoint.config["vocab_size"])
        used = [vocabulary.start, vocabulary.end, *vocabulary.encode(RESIDUES).tolist()]
        # X, the last, may have the id of unknown tokens
        is_unique = len(set(used[:-1])) == len(used) - 1
        numbers = [i for i in used if i is not None]
        if not is_unique or min(numbers) < 0 or max(numbers) >= size:
            problem = f"has ids that are not unique, or above {size - 1}"
    if problem:
        msg = (
            f"{checkpoint.folder}: its tokenizer {problem}; expected a token per residue. Copy "
            "the tokenizer's files of the model into the folder."
        )
        raise EncoderError(msg)
    return vocabulary


def _read_files(folder: Path) -> list[Mapping[str, int]]:
    """Read the ids of tokens from each file of a tokenizer in a folder."""
    vocabularies: list[Mapping[str, int]] = []
    problem = f"none of {', '.join(_READERS)}"
    for name, read in _READERS.items():
        if not (folder / name).is_file():
            continue
        try:
            ids = {str(token): int(i) for token, i in read(folder / name)}
        except Exception as error:  # noqa: BLE001 - tokenizers and sentencepiece raise nothing narrower
            vocabularies = []
            problem = f"{name}: {first_line(error)}"
            break
        # a marker of the start of a word, where residues are words
        without_marker = {token.removeprefix("▁"): i for token, i in ids.items()}
        vocabularies.append(without_marker | ids)
    if not vocabularies:
        msg = (
            f"{folder}: no readable tokenizer ({problem}); "
            "copy the tokenizer's files into the folder"
        )
        raise EncoderError(msg)
    return vocabularies


def _lines(path: Path) -> _Ids:
    tokens = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    if len(set(tokens)) < len(tokens):
        msg = "a token occurs twice"
        raise ValueError(msg)
    return zip(tokens, range(len(tokens)), strict=True)


def _json(path: Path) -> Any:  # noqa: ANN401 - of any shape
    return json.loads(path.read_text(encoding="utf-8"))


def _pipeline(path: Path) -> _Ids:
    content = _json(path)
    vocabulary = content["model"]["vocab"]
    if isinstance(vocabulary, list):  # of a unigram model: tokens with their scores
        for i, (token, _) in enumerate(vocabulary):
            yield token, i
    else:
        yield from vocabulary.items()
    for added in content.get("added_tokens") or ():
        yield added["content"], added["id"]


def _pieces(path: Path) -> _Ids:
    from sentencepiece import SentencePieceProcessor

    # not T5Tokenizer(vocab_file=...): transformers 5 ignores the file without a word
    pieces: Any = SentencePieceProcessor(model_proto=path.read_bytes())
    return ((pieces.id_to_piece(i), i) for i in range(len(pieces)))


def _settings(path: Path) -> _Ids:
    added = _json(path).get("added_tokens_decoder") or {}
    return ((token["content"], int(i)) for i, token in added.items())


def _literal(path: Path) -> _Ids:
    """Return the tokens of a dictionary in Python source, which is not run."""
    source = path.read_text(encoding="utf-8")
    dictionary = source[source.index("{") : source.index("}") + 1]
    items: _Ids = ast.literal_eval(dictionary).items()
    return items


_READERS: dict[str, Callable[[Path], _Ids]] = {
    "spiece.model": _pieces,
    "tokenizer.json": _pipeline,
    "vocab.json": lambda path: _json(path).items(),
    "vocab.txt": _lines,
    "models/ablang2/vocab.py": _literal,
    "added_tokens.json": lambda path: _json(path).items(),
    "tokenizer_config.json": _settings,
}
"""The first that has a token says its id, if only files do."""
