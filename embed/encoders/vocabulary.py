"""Token ids of a checkpoint, compared with the vocabulary files that it holds.

abag looks tokens up in its own tables. A checkpoint whose files number them otherwise was trained
on other ids, and its vectors would be wrong.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from abag import AbagError
from abag.core.messages import first_line
from abag.embed.families.family import Family
from abag.embed.families.registry import FAMILIES
from abag.embed.packing import Vocabulary
from abag.embed.sequences.chains import RESIDUES, STANDARD_RESIDUES
from abag.embed.weights import BadCheckpoint, EncoderCheckpoint


class TokenizerMismatch(AbagError):
    """A checkpoint's vocabulary files give tokens other ids than abag does."""


def vocabulary_of(checkpoint: EncoderCheckpoint) -> Vocabulary:
    """Return the token ids of a checkpoint, after a comparison with its files.

    Raises
    ------
    TokenizerMismatch
        A token with another id.
    BadCheckpoint
        No vocabulary file, or one that cannot be read.
    """
    family = FAMILIES[checkpoint.family]
    if checkpoint.folder is None or not family.tokens:
        return family.vocabulary
    files = _read_files(checkpoint.folder)
    if family.read_vocabulary is not None:
        return _read_vocabulary(family, files, checkpoint)
    for token, wanted in _used_tokens(family).items():
        found = {ids[token] for ids in files if token in ids}
        if found != ({wanted} if wanted is not None else set()):
            theirs = " or ".join(map(str, sorted(found))) or "none"
            msg = (
                f"{checkpoint.origin}: its tokenizer disagrees with abag's vocabulary: the id of "
                f"{token} is {theirs}, expected {'none' if wanted is None else wanted}. Use a "
                "checkpoint of the family that config.json names, with all files of its tokenizer."
            )
            raise TokenizerMismatch(msg)
    return family.vocabulary


def _used_tokens(family: Family) -> dict[str, int | None]:
    """Return the id of each token that spans are made of; None for a residue without a token."""
    vocabulary, texts = family.vocabulary, {i: token for token, i in family.tokens.items()}
    special = (vocabulary.start, vocabulary.end, vocabulary.separator)
    ids = [*special, *(vocabulary.chain_tokens or ()), *vocabulary.encode(RESIDUES).tolist()]
    used: dict[str, int | None] = {texts[i]: i for i in ids if i is not None}
    return used | {letter: None for letter in RESIDUES if letter not in family.tokens}


def _read_vocabulary(
    family: Family, files: list[Mapping[str, int]], checkpoint: EncoderCheckpoint
) -> Vocabulary:
    """Make the vocabulary of a family whose ids only the files of a checkpoint say."""
    assert family.read_vocabulary is not None
    ids: dict[str, int] = {}
    for of_file in reversed(files):  # the first wins
        ids |= of_file
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
        if len(set(used[:-1])) < len(used) - 1 or not all(
            0 <= i < size for i in used if i is not None
        ):
            problem = f"has ids that are not unique, or above {size - 1}"
    if problem:
        msg = (
            f"{checkpoint.folder}: its tokenizer {problem}; expected a token per residue. Copy "
            "the tokenizer's files of the model into the folder."
        )
        raise BadCheckpoint(msg)
    return vocabulary


def _read_files(folder: Path) -> list[Mapping[str, int]]:
    """Read every vocabulary file of a folder: ids by token."""
    found: list[Mapping[str, int]] = []
    for name, read in _READERS.items():
        if not (path := folder / name).is_file():
            continue
        try:
            ids = {str(token): int(i) for token, i in read(path)}
        # tokenizers and sentencepiece raise nothing narrower
        except Exception as error:
            msg = (
                f"{folder}: no readable tokenizer ({name}: {first_line(error)}); "
                "copy the tokenizer's files into the folder"
            )
            raise BadCheckpoint(msg) from error
        # a marker of the start of a word, where residues are words
        found.append({token.removeprefix("▁"): i for token, i in ids.items()} | ids)
    if not found:
        msg = (
            f"{folder}: no readable tokenizer (none of {', '.join(_READERS)}); "
            "copy the tokenizer's files into the folder"
        )
        raise BadCheckpoint(msg)
    return found


def _lines(path: Path) -> Iterator[tuple[str, int]]:
    tokens = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    if len(set(tokens)) < len(tokens):
        msg = "a token occurs twice"
        raise ValueError(msg)
    return zip(tokens, range(len(tokens)), strict=True)


def _json(path: Path) -> Iterator[tuple[str, int]]:
    return iter(json.loads(path.read_text(encoding="utf-8")).items())


def _pipeline(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the tokens of a file of the package tokenizers."""
    content = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    if isinstance(vocabulary, list):  # of a unigram model: tokens with their scores
        yield from ((token, i) for i, (token, _) in enumerate(vocabulary))
    else:
        yield from vocabulary.items()
    yield from ((token["content"], token["id"]) for token in content.get("added_tokens") or ())


def _pieces(path: Path) -> Iterator[tuple[str, int]]:
    from sentencepiece import SentencePieceProcessor

    pieces: Any = SentencePieceProcessor(model_proto=path.read_bytes())
    return ((pieces.id_to_piece(i), i) for i in range(len(pieces)))


def _settings(path: Path) -> Iterator[tuple[str, int]]:
    added = json.loads(path.read_text(encoding="utf-8")).get("added_tokens_decoder") or {}
    return ((token["content"], int(i)) for i, token in added.items())


def _literal(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the tokens of a dictionary in Python source, which is not run."""
    source = path.read_text(encoding="utf-8")
    return iter(ast.literal_eval(source[source.index("{") : source.index("}") + 1]).items())


_READERS: dict[str, Callable[[Path], Iterator[tuple[str, int]]]] = {
    "spiece.model": _pieces,
    "tokenizer.json": _pipeline,
    "vocab.json": _json,
    "vocab.txt": _lines,
    "models/ablang2/vocab.py": _literal,
    "added_tokens.json": _json,
    "tokenizer_config.json": _settings,
}
"""The first that has a token says its id, if only files do."""
