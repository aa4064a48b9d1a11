"""Token ids by the vocabulary files of a checkpoint, read without transformers.

Importing transformers takes seconds, and abag needs it only to compare ids. This reader returns
ids only where the files leave no doubt; `Family.load_tokenizer` is the reference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from abag.core.messages import first_line

PIPELINE_FILE = "tokenizer.json"
PIECES_FILE = "spiece.model"
_DOUBTFUL = ("auto_map", "sp_model_kwargs")
"""Settings of a tokenizer that may change ids, and that no encoder of abag needs."""
FindWord: TypeAlias = Callable[[str], int | None]


class WordTokenizer(NamedTuple):
    """A tokenizer of transformers that looks up words, and what it adds before and after them."""

    classes: tuple[str, ...]  # its names in tokenizer_config.json
    before: tuple[str, str]  # name in tokenizer_config.json, and token; "" if there is none
    after: tuple[str, str]


def ids_by_files(kind: WordTokenizer | None, folder: Path, text: str) -> list[int] | None:
    """Return the ids of a text, with the tokens that the tokenizer adds around it.

    `kind` is None for a checkpoint whose tokenizer.json is used as it is.

    Returns
    -------
    list of int or None
        None if the files are unknown or unreadable, or if two of them disagree: then only
        transformers can tell.
    """
    try:
        found = [*_ids_of_each_file(kind, folder, text)]
    except Exception:  # noqa: BLE001 - tokenizers raises nothing narrower for a damaged file
        return None
    return found[0] if found and all(ids == found[0] for ids in found) else None


def _ids_of_each_file(
    kind: WordTokenizer | None, folder: Path, text: str
) -> Iterator[list[int] | None]:
    if (path := folder / PIPELINE_FILE).is_file():
        from tokenizers import Tokenizer

        yield Tokenizer.from_str(path.read_text(encoding="utf-8")).encode(text).ids
    if kind is None:
        return
    added, unchanged = _settings(kind, folder)
    if not unchanged:
        yield None
    words = [kind.before[1], *text.split(), kind.after[1]]
    for find, unknown in _vocabularies(folder):
        found = [(find(word), added.get(word)) for word in words if word]
        if any(None not in ids and ids[0] != ids[1] for ids in found):
            yield None  # versions of transformers give an added token either id
        yield [next((i for i in ids if i is not None), unknown) for ids in found]


def ids_by_pieces(folder: Path, text: str) -> list[int]:
    """Return the ids of a text whose pieces need no spaces between them, and of the end token.

    `spiece.model` is what the models were trained with; `tokenizer.json` is used without it.

    Raises
    ------
    ValueError
        If there is no such file, or it cannot be read.
    """
    found = [name for name in (PIECES_FILE, PIPELINE_FILE) if (folder / name).is_file()]
    if not found:
        msg = f"neither {PIECES_FILE} nor {PIPELINE_FILE}"
        raise ValueError(msg)
    path = folder / found[0]
    try:
        if path.name == PIECES_FILE:
            from sentencepiece import SentencePieceProcessor

            pieces: Any = SentencePieceProcessor(model_proto=path.read_bytes())
            return [*pieces.encode(text), pieces.piece_to_id("</s>")]
        from tokenizers import Tokenizer

        return list(Tokenizer.from_str(path.read_text(encoding="utf-8")).encode(text).ids)
    except Exception as error:  # tokenizers raises Exception itself
        msg = f"{path.name}: {first_line(error)}"
        raise ValueError(msg) from error


def _vocabularies(folder: Path) -> Iterator[tuple[FindWord, int]]:
    """Yield how each vocabulary file of a folder finds a word, and its id of unknown words."""
    if (path := folder / "vocab.txt").is_file():
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        at = {token: i for i, token in enumerate(lines)}
        if len(at) < len(lines):
            msg = "a token occurs twice"
            raise ValueError(msg)
        yield at.get, next(at[token] for token in ("<unk>", "[UNK]") if token in at)
    if (path := folder / PIECES_FILE).is_file():
        from sentencepiece import SentencePieceProcessor

        pieces: Any = SentencePieceProcessor(model_proto=path.read_bytes())
        unknown = pieces.unk_id()
        controls = {pieces.id_to_piece(i): i for i in range(len(pieces)) if pieces.is_control(i)}

        def find(word: str) -> int | None:
            ids = [controls[word]] if word in controls else pieces.encode(word)
            return ids[0] if len(ids) == 1 and ids[0] != unknown else None

        yield find, unknown


def _settings(kind: WordTokenizer, folder: Path) -> tuple[Mapping[str, int], bool]:
    """Return the added tokens, and whether no setting changes what the vocabulary says."""
    config, special, added = (
        json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        for path in map(
            folder.joinpath,
            ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
        )
    )
    decoder = config.get("added_tokens_decoder", {})
    listed = {str(token["content"]): int(i) for i, token in decoder.items()}
    known = str(config.get("tokenizer_class") or kind.classes[0]).removesuffix("Fast")
    unchanged = known in kind.classes and all(
        _content(settings[name]) == token
        for name, token in (kind.before, kind.after)
        for settings in (config, special)
        if name in settings
    )
    unchanged &= not any(config.get(name) for name in _DOUBTFUL)
    unchanged &= all(added.get(token, i) == i for token, i in listed.items())
    return listed | {str(token): int(i) for token, i in added.items()}, unchanged


def _content(token: str | Mapping[str, Any] | None) -> str:
    """Return the text of a special token, which transformers also writes with its settings."""
    return token or "" if isinstance(token, str | None) else str(token["content"])


def letter_pipeline(ids: Mapping[str, int], template: str = "") -> bytes:
    """Return a tokenizer.json with a piece per letter; longer tokens are special.

    `template` is what it makes of a text ``$A``, such as ``<cls> $A <eos>``.
    """
    from tokenizers import Tokenizer, models, processors

    pipeline = Tokenizer(models.BPE(vocab=dict(ids), merges=[], unk_token="<unk>"))
    pipeline.add_special_tokens([token for token in ids if len(token) > 1])
    if template:
        special = [(token, ids[token]) for token in template.split() if token in ids]
        pipeline.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=special
        )
    return str(pipeline.to_str()).encode()
