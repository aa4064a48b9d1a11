import hashlib
import inspect
import json
import random
import re
import subprocess
import sys
from dataclasses import fields, replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import sentencepiece
import tokenizers
import transformers
from ablang2.models.ablang2.tokenizers import ABtokenizer
from encoding import (
    FAMILIES,
    TokenSpan,
    find_checkpoint,
    identify,
    save_random_checkpoint,
    vocabulary_of,
)
from hypothesis import given
from hypothesis import strategies as st

from abag import EncoderError
from abag.embed.encoders.packing import TokenLayout, fill_batches, longest_first
from abag.embed.tables.chains import RESIDUES

T5, ESM, BERT = (FAMILIES[name].vocabulary for name in ("t5", "esm", "bert"))
chain = st.text(RESIDUES, min_size=1, max_size=60)


@given(sequence=chain)
def test_a_single_heavy_or_light_chain_is_its_residues_and_one_end_token(sequence):
    layout = TokenLayout("antibody", T5)
    heavy = layout.spans((sequence, ""))[0]
    light = layout.spans(("", sequence))[0]
    assert heavy.ids.tolist() == light.ids.tolist()
    assert len(heavy.ids) == len(sequence) + 1
    assert heavy.weights[:, 1].sum() == pytest.approx(1)
    assert not heavy.weights[:, 2].any()
    assert not light.weights[:, 1].any()


# ---- the exact tokens of each family, by the tokenizer class that its models are used with ----


def unigram(marker):
    """A T5 vocabulary with the pieces of ProtT5, each after a marker of the start of a word."""
    letters = (marker + letter for letter in "ALGVSREDTIPKFQNYMHWCXBOUZ")
    pieces = ["<pad>", "</s>", "<unk>", *letters]
    return [(piece, -float(i)) for i, piece in enumerate(pieces)]


def prott5():
    if transformers.__version__ < "5":
        pytest.skip("this version reads the vocabulary from a file of sentencepiece")
    return transformers.T5Tokenizer(vocab=unigram("▁"), extra_ids=100)


def prostt5():
    tokenizer = prott5()
    tokenizer.add_tokens([*"algvsrdetipkfqnymhwc", "<fold2AA>", "<AA2fold>"])
    return tokenizer


def ankh():
    pipeline = tokenizers.Tokenizer(tokenizers.models.Unigram(unigram(""), unk_id=2))
    pipeline.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=pipeline)


def ankh3_pieces(folder, *tasks):
    """Let SentencePiece train a vocabulary whose letters have the order of Ankh 3's."""
    letters = "LAGSVERTIDPKNFQYHMCWX"
    text = "".join(letter * (30 - i) for i, letter in enumerate(letters))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text] * 9),
        model_prefix=str(folder / "spiece"),
        model_type="char",
        vocab_size=3 + len(tasks) + len(letters),
        character_coverage=1.0,
        hard_vocab_limit=False,
        add_dummy_prefix=False,
        normalization_rule_name="identity",
        minloglevel=2,
        user_defined_symbols=list(tasks),
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
    )
    return folder / "spiece.model"


def ankh3(folder):
    if transformers.__version__ >= "5":
        pytest.skip("this version takes the task for a word and marks its start")
    pieces = ankh3_pieces(folder, "[NLU]", "[S2S]", "[NLG]", "[MASK]")
    return transformers.T5Tokenizer(str(pieces), extra_ids=0, legacy=False)


def written(folder, tokens):
    path = folder / "vocab.txt"
    path.write_text("\n".join(tokens.split()), encoding="utf-8")
    return str(path)


BERT_SPECIALS = "[PAD] [UNK] [CLS] [SEP] [MASK] "


def antiberty(folder):
    vocab = written(folder, BERT_SPECIALS + " ".join("ACDEFGHIKLMNPQRSTVWY"))
    return transformers.BertTokenizer(vocab, do_lower_case=False)


def protbert(folder):
    vocab = written(folder, BERT_SPECIALS + " ".join("LAGVESIKRDTPNQFYMHCWXUBZO"))
    return transformers.BertTokenizer(vocab, do_lower_case=False)


def antiberta2(folder, monkeypatch):
    words = SimpleNamespace(  # residues with spaces between them are words in any language
        tokenize=lambda text, hmm: [(m[0], *m.span()) for m in re.finditer(r"\S+|\s", text)],
        cut=lambda text, hmm: re.findall(r"\S+|\s", text),  # transformers 4 calls this one
    )
    monkeypatch.setitem(sys.modules, "rjieba", words)
    specials = "[PAD] [CLS] [SEP] [MASK] [UNK] "
    vocab = written(folder, specials + " ".join("ACDEFGHIKLMNPQRSTVWYXḢḶ"))
    return transformers.RoFormerTokenizer(vocab, do_lower_case=False)


def ab_roberta(folder):
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *"ACDEFGHIKLMNPQRSTVWY"]
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizer"}')
    return transformers.AutoTokenizer.from_pretrained(folder)


def esm2(folder):
    letters = " ".join("LAGVSERTIDPKQNFYMHWCXBUZO")
    vocab = f"<cls> <pad> <eos> <unk> {letters} . - <null_1> <mask>"
    return transformers.EsmTokenizer(written(folder, vocab))


def esmc():
    if not hasattr(transformers, "EsmcTokenizer"):
        pytest.skip("this version of transformers has no ESM C")
    return transformers.EsmcTokenizer()


def amplify():
    specials = ["<pad>", "<unk>", "<mask>", "<bos>", "<eos>", "|"]
    ids = {t: i for i, t in enumerate([*specials, *"LAGVSERTIDPKQNFYMHWC", "B"])}
    pipeline = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<unk>"))
    pipeline.add_special_tokens(specials[:5])
    pipeline.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "removed")
    pipeline.post_processor = tokenizers.processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 3), ("<eos>", 4)]
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=pipeline, unk_token="<unk>")


def glm2():
    letters = [*"LAGVSERTIDPKQNFYMHWCXBUZOatcg"]
    tokens = ["<cls>", "<pad>", "<eos>", "<unk>", *letters, "<+>", "<->", "<mask>", "<sep>"]
    ids = {token: i for i, token in enumerate(tokens)}
    pipeline = tokenizers.Tokenizer(tokenizers.models.BPE(ids, merges=[], unk_token="<unk>"))
    pipeline.add_special_tokens([token for token in tokens if len(token) > 1])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=pipeline, unk_token="<unk>")


def ablang2():
    tokenizer = ABtokenizer()

    def call(text):
        heavy, light = (chain.strip("<>") for chain in text.split("|"))
        return {"input_ids": tokenizer([heavy, light])[0].tolist()}

    return call


GOLDEN = [  # tokenizer, family, text of each span, its ids: of an antibody, then of an antigen
    (prott5, "t5", ["E V Q </s> D I X"], [[9, 6, 16, 1, 10, 12, 23, 1]]),
    (prott5, "t5", ["M X"], [[19, 23, 1]]),
    (
        prostt5, "prostt5", ["<AA2fold> E V Q", "<AA2fold> D I X"],
        [[149, 9, 6, 16, 1], [149, 10, 12, 23, 1]],
    ),
    (prostt5, "prostt5", ["<AA2fold> M X"], [[149, 19, 23, 1]]),
    (ankh, "ankh", ["EVQ", "DIX"], [[9, 6, 16, 1], [10, 12, 23, 1]]),
    (ankh, "ankh", ["MX"], [[19, 23, 1]]),
    (ankh3, "ankh3", ["[NLU]EVQ", "[NLU]DIX"], [[3, 12, 11, 21, 1], [3, 16, 15, 27, 1]]),
    (ankh3, "ankh3", ["[NLU]MX"], [[3, 24, 27, 1]]),
    (esm2, "esm", ["E V Q", "D I X"], [[0, 9, 7, 16, 2], [0, 13, 12, 24, 2]]),
    (esm2, "esm", ["M X"], [[0, 20, 24, 2]]),
    (esm2, "esm1", ["E V Q", "D I X"], [[0, 9, 7, 16, 2], [0, 13, 12, 24, 2]]),
    (esm2, "esm1", ["M X"], [[0, 20, 24, 2]]),
    (esmc, "esmc", ["EVQ", "DIX"], [[0, 9, 7, 16, 2], [0, 13, 12, 24, 2]]),
    (esmc, "esmc", ["MX"], [[0, 20, 24, 2]]),
    (amplify, "amplify", ["EVQ", "DIX"], [[3, 11, 9, 18, 4], [3, 15, 14, 1, 4]]),
    (amplify, "amplify", ["MX"], [[3, 22, 1, 4]]),
    (glm2, "glm2", ["<+>EVQ", "<+>DIX"], [[33, 9, 7, 16], [33, 13, 12, 24]]),
    (glm2, "glm2", ["<+>MX"], [[33, 20, 24]]),
    (antiberty, "bert", ["E V Q", "D I X"], [[2, 8, 22, 18, 3], [2, 7, 12, 1, 3]]),
    (antiberty, "bert", ["M X"], [[2, 15, 1, 3]]),
    (protbert, "protbert", ["E V Q [SEP] D I X"], [[2, 9, 8, 18, 3, 14, 11, 25, 3]]),
    (protbert, "protbert", ["M X"], [[2, 21, 25, 3]]),
    (
        antiberta2, "roformer", ["Ḣ E V Q [SEP] Ḷ D I X"],
        [[1, 26, 8, 22, 18, 2, 27, 7, 12, 25, 2]],
    ),
    (antiberta2, "roformer", ["M X"], [[1, 15, 25, 2]]),
    (ab_roberta, "roberta", ["EVQ", "DI<unk>"], [[0, 8, 22, 18, 2], [0, 7, 12, 3, 2]]),
    (ab_roberta, "roberta", ["M<unk>"], [[0, 15, 3, 2]]),
    (ablang2, "ablang2", ["<EVQ>|<DIX>"], [[0, 6, 15, 10, 22, 25, 0, 5, 16, 24, 22]]),
    (ablang2, "ablang2", ["<MX>|"], [[0, 1, 24, 22, 25]]),
]  # fmt: skip


def test_the_exact_tokens_of_every_family_are_listed():
    assert {family for _, family, *_ in GOLDEN} == {*WITH_FILES}


def made(make, request):
    """Make a tokenizer with the fixtures that it asks for."""
    fixtures = {"folder": "tmp_path", "monkeypatch": "monkeypatch"}
    needed = inspect.signature(make).parameters
    return make(*(request.getfixturevalue(fixtures[name]) for name in needed))


@pytest.mark.parametrize(("make", "family", "texts", "expected"), GOLDEN)
def test_the_tokens_of_each_family_are_those_of_its_tokenizer_class(
    make, family, texts, expected, request
):
    tokenizer = made(make, request)
    assert [list(tokenizer(text)["input_ids"]) for text in texts] == expected
    chains, kind = (("MX",), "antigen") if "M" in texts[0] else (("EVQ", "DIX"), "antibody")
    layout = TokenLayout(kind, FAMILIES[family].vocabulary)
    assert [span.ids.tolist() for span in layout.spans(chains)] == expected
    assert layout.span_lengths(chains) == [len(ids) for ids in expected]


# sha256 of the ids that the models' own tokenizers gave the authors of Synthyra/FastPLMs
# (tests/goldens at 290046a7), of Ankh 3's without a task
PUBLISHED = {
    "ankh": "0c1af56968fd959dbdd7ff32df0e44986766d188b1dc4fbcb0028558e9094b95",
    "ankh3": "1cdcea1bb937d17b0c44561161af3fff45b6ec5b267746426571460a1a27d8d0",
    "esm": "7c017cc9226e1262e354dd8494e871929c0ef516214ad8afa58c97df32885bed",
    "esmc": "7c017cc9226e1262e354dd8494e871929c0ef516214ad8afa58c97df32885bed",
}


@pytest.mark.parametrize("family", PUBLISHED)
def test_the_ids_of_real_tokenizers_have_the_published_digest(family):
    vocabulary = FAMILIES[family].vocabulary
    draw = random.Random(42)
    if family == "ankh3":
        vocabulary = replace(vocabulary, start=None)
    chains = ["M" + "".join(draw.choices(RESIDUES[:20], k=n - 1)) for n in (61, 29, 13)]
    rows = [TokenLayout("antigen", vocabulary).spans((chain,))[0].ids for chain in chains]
    ids = np.full((len(rows), max(map(len, rows))), vocabulary.pad)
    for row, target in zip(rows, ids, strict=True):
        target[: len(row)] = row
    assert {*"".join(chains)} == {*RESIDUES[:20]}
    header = json.dumps({"dtype": "int64", "shape": ids.shape}, separators=(",", ":"))
    digest = hashlib.sha256(header.encode() + b"\0" + ids.astype("<i8").tobytes())
    assert digest.hexdigest() == PUBLISHED[family]


@pytest.mark.parametrize("tasks", [("[NLU]", "[S2S]"), ("[S2S]", "[MASK]", "[NLU]")])
def test_the_ids_of_ankh3_are_those_of_the_pieces_in_the_checkpoint(tmp_path, tasks):
    former = identify(str(random_checkpoint(tmp_path, "ankh3").folder), "antigen")
    (tmp_path / "vocab.json").unlink()
    ankh3_pieces(tmp_path, *tasks)
    identity = identify(str(tmp_path), "antigen")
    first = 3 + len(tasks)
    assert identity.layout.spans(("LAX",))[0].ids.tolist() == [
        3 + tasks.index("[NLU]"),
        first,
        first + 1,
        first + 20,
        1,
    ]
    assert identity.fingerprint != former.fingerprint
    assert identity.meaning["ids"][0] == 3 + tasks.index("[NLU]")


def test_ankh3_reads_a_pipeline_where_there_are_no_pieces(tmp_path):
    former = identify(str(random_checkpoint(tmp_path, "ankh3").folder), "antigen")
    tokens = [token for token in FAMILIES["ankh3"].tokens if token != "[NLU]"]
    texts = [("pad", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("", 0.0)]
    texts += [(token, -1.0) for token in tokens[3:]]
    pipeline = {"model": {"vocab": texts}, "added_tokens": [{"content": "[NLU]", "id": 3}]}
    (tmp_path / "vocab.json").unlink()
    (tmp_path / "tokenizer.json").write_text(json.dumps(pipeline))
    assert identify(str(tmp_path), "antigen").fingerprint == former.fingerprint


@pytest.mark.parametrize(("change", "message"), [
    (lambda folder: (folder / "vocab.json").unlink(), "no readable tokenizer .none of spiece"),
    (lambda folder: (folder / "spiece.model").write_bytes(b"x"), r"tokenizer \(spiece\.model: "),
    (lambda folder: (folder / "tokenizer.json").write_text("{"), r"\(tokenizer\.json: "),
    (lambda folder: write_ids(folder, "[NLU]"), r"lacks \[NLU\]; expected a token per residue"),
    (lambda folder: write_ids(folder, "W"), "lacks W; expected a token per residue"),
    (lambda folder: write_ids(folder, W=999), "not unique, or above 255"),
    (lambda folder: write_ids(folder, W=7), "not unique, or above 255"),
])  # fmt: skip
def test_a_tokenizer_of_ankh3_without_the_task_or_the_residues_is_refused(
    tmp_path, change, message
):
    random_checkpoint(tmp_path, "ankh3")
    change(tmp_path)
    with pytest.raises(EncoderError, match=message):
        identify(str(tmp_path), "antigen")


def write_ids(folder, without="", **ids):
    """Write the vocabulary file of a random checkpoint without a token, or with other ids."""
    path = folder / "vocab.json"
    tokens = json.loads(path.read_text()) | ids
    path.write_text(json.dumps({token: i for token, i in tokens.items() if token != without}))


@pytest.mark.parametrize(("family", "size"), [("prostt5", 150), ("protbert", 30)])
def test_tokens_added_to_a_family_that_its_vocabulary_tells_apart_are_refused(
    tmp_path, family, size
):
    config = FAMILIES[family].tiny_config | {"vocab_size": size + 1}
    save_random_checkpoint(tmp_path, config, 0)
    tokens = FAMILIES[family].tokens | {"<mine>": size}
    (tmp_path / "vocab.json").write_text(json.dumps(tokens))
    with pytest.raises(EncoderError, match=rf"is {size}; config\.json has {size + 1}\. Remove"):
        identify(str(tmp_path), "antigen")


@pytest.mark.parametrize(("heavy", "light", "spans"), [(130, 121, [256]), (130, 122, [133, 125])])
def test_a_pair_that_the_positions_cannot_hold_is_encoded_as_two_chains(heavy, light, spans):
    layout = TokenLayout("antibody", FAMILIES["roformer"].vocabulary)
    chains = ("A" * heavy, "C" * light)
    assert layout.span_lengths(chains) == [len(s.ids) for s in layout.spans(chains)] == spans
    assert layout.is_long(chains) == (len(spans) == 2)
    assert layout.vocabulary.longest_span == 256


WITH_FILES = [name for name, f in FAMILIES.items() if f.model_type]


def random_checkpoint(folder, family):
    config = FAMILIES[family].tiny_config
    return find_checkpoint(str(save_random_checkpoint(folder, config, 0)))


def test_antiberty_reads_the_vocabulary_in_its_package():
    assert vocabulary_of(find_checkpoint("antiberty")) is BERT


SAVED = [  # what transformers writes for the tokenizer of a family
    (prott5, "t5"), (prostt5, "prostt5"), (ankh, "ankh"), (antiberty, "bert"),
    (protbert, "protbert"), (antiberta2, "roformer"), (ab_roberta, "roberta"), (esm2, "esm"),
    (esmc, "esmc"), (amplify, "amplify"), (glm2, "glm2"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "family"), SAVED)
def test_files_that_transformers_has_written_agree_with_the_vocabulary(
    tmp_path, make, family, request
):
    checkpoint = random_checkpoint(tmp_path / "model", family)
    (checkpoint.folder / "vocab.json").unlink()
    made(make, request).save_pretrained(checkpoint.folder)
    vocabulary = vocabulary_of(checkpoint)
    ours = FAMILIES[family].vocabulary
    assert np.array_equal(vocabulary.ids, ours.ids)
    for name in [field.name for field in fields(ours) if field.name != "ids"]:
        assert getattr(vocabulary, name) == getattr(ours, name), name


def swap(folder):
    ids = json.loads((folder / "vocab.json").read_text())
    write_ids(folder, D=ids["E"], E=ids["D"])


def add(name, text):
    return lambda folder: (folder / name).write_text(text)


SETTINGS = '{"added_tokens_decoder": {"24": {"content": "A"}}}'


@pytest.mark.parametrize("family", ["t5", "esm", "protbert", "amplify", "ablang2"])
@pytest.mark.parametrize(("change", "message"), [
    (swap, "the id of [DE] is .*, expected"),
    (add("added_tokens.json", '{"A": 25}'), r"the id of A is \d+ or 25, expected"),
    (add("tokenizer_config.json", SETTINGS), r"the id of A is \d+ or 24, expected"),
    (lambda folder: write_ids(folder, "W"), "the id of W is none, expected"),
    (add("vocab.txt", "A\nC\nA"), r"no readable tokenizer \(vocab.txt: a token occurs twice"),
    (add("vocab.json", "[1]"), r"tokenizer \(vocab.json: "),
    (lambda folder: (folder / "vocab.json").unlink(), r"tokenizer \(none of "),
])  # fmt: skip
def test_other_ids_or_unreadable_files_are_refused(tmp_path, family, change, message):
    random_checkpoint(tmp_path, family)
    change(tmp_path)
    with pytest.raises(EncoderError, match=message):
        identify(str(tmp_path), "antigen")


@pytest.mark.parametrize("family", ["amplify", "bert", "roberta"])
def test_a_residue_that_only_the_files_have_is_refused(tmp_path, family):
    random_checkpoint(tmp_path, family)
    write_ids(tmp_path, X=24)
    if family == "roberta":  # reads its ids from the files
        assert identify(str(tmp_path), "antigen").layout.vocabulary.ids[ord("X")] == 24
        return
    with pytest.raises(EncoderError, match="the id of X is 24, expected none"):
        identify(str(tmp_path), "antigen")


@pytest.mark.ci
def test_checking_a_checkpoint_does_not_import_transformers(tmp_path):
    folders = [str(random_checkpoint(tmp_path / name, name).folder) for name in WITH_FILES]
    code = f"""
import sys
from abag.embed.encoders.identity import identify
for name in {folders}:
    identify(name, "antigen")
print("transformers" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(("vocabulary", "kind", "lengths"), [
    (ESM, "antigen", [1]), (ESM, "antigen", [1022]), (ESM, "antigen", [1023]),
    (ESM, "antigen", [2500, 80]), (T5, "antigen", [2044]), (BERT, "antibody", [120, 700]),
    (T5, "antibody", [130, 110]), (ESM, "antibody", [130, 0]),
    (FAMILIES["protbert"].vocabulary, "antibody", [130, 110]),
    (FAMILIES["roformer"].vocabulary, "antibody", [118, 107]),
    (FAMILIES["roformer"].vocabulary, "antibody", [0, 107]),
    (FAMILIES["roformer"].vocabulary, "antibody", [450, 214]),
    (FAMILIES["roformer"].vocabulary, "antigen", [600, 20]),
    (FAMILIES["prostt5"].vocabulary, "antibody", [130, 110]),
])  # fmt: skip
def test_weights_average_every_residue_equally_and_special_tokens_never(vocabulary, kind, lengths):
    layout = TokenLayout(kind, vocabulary)
    rng = np.random.default_rng(0)
    chains = tuple("".join(rng.choice(list(RESIDUES[:20]), n)) for n in lengths)
    spans = layout.spans(chains)
    assert [len(p.ids) for p in spans] == layout.span_lengths(chains)
    total = np.sum([p.weights.sum(0) for p in spans], axis=0)
    absent = dict(zip(("heavy_mean", "light_mean"), np.equal(lengths, 0), strict=False))
    expected = [0.0 if absent.get(name) else 1.0 for name in layout.poolings]
    np.testing.assert_allclose(total, expected, atol=1e-5)
    specials = {vocabulary.start, vocabulary.end, vocabulary.separator} - {None}
    for span in spans:
        special = np.isin(span.ids, list(specials))
        assert not span.weights[special, 0].any()
        if layout.limit is not None and kind == "antigen":
            assert len(span.ids) <= layout.limit + vocabulary.special_tokens
    others = tuple("".join(rng.choice(list(RESIDUES[:20]), n)) for n in lengths)
    alone = TokenLayout(kind, vocabulary).spans(others)
    for after, span in zip(layout.spans(others), alone, strict=True):  # of equal lengths
        np.testing.assert_array_equal(after.ids, span.ids)
        np.testing.assert_array_equal(after.weights, span.weights)


def test_windows_of_a_2500_residue_chain_start_every_511_residues_and_reach_the_end():
    layout = TokenLayout("antigen", ESM)
    assert layout.span_lengths(("A" * 2500,)) == [1024, 1024, 1024, 2500 - 3 * 511 + 2]


def test_long_chains_are_truncated_only_on_request():
    chains = ("A" * 1500,)
    assert TokenLayout("antigen", ESM, "truncate").span_lengths(chains) == [1024]
    assert TokenLayout("antigen", ESM, "truncate").spans(chains)[0].weights[1:-1, 0].sum() == (
        pytest.approx(1, rel=1e-5)
    )


sequences = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=4), min_size=1, max_size=30)


def _spans(lengths):
    token = iter(range(10**6))
    for sequence, span_lengths in enumerate(lengths):
        for length in span_lengths:
            ids = np.array([next(token) for _ in range(length)], dtype=np.int32)
            yield sequence, TokenSpan(ids, np.ones((length, 2), dtype=np.float32))


@given(lengths=sequences, budget=st.integers(40, 200))
def test_batches_partition_the_tokens_in_order_and_none_is_empty_or_over_budget(lengths, budget):
    batches = list(fill_batches(_spans(lengths), budget))
    tokens = np.concatenate([b.ids for b in batches])
    assert tokens.tolist() == list(range(sum(map(sum, lengths))))
    assert all(0 < len(b.ids) <= budget for b in batches)
    split = []
    for batch in batches:
        split += [len(span) for span in np.split(batch.ids, batch.offsets[1:-1])]
    expected = []
    for span_lengths in lengths:
        expected += span_lengths
    assert split == expected


@given(lengths=sequences, budget=st.integers(40, 200))
def test_every_token_belongs_to_its_sequence_and_only_a_split_sequence_continues(lengths, budget):
    owner = []
    for sequence, span_lengths in enumerate(lengths):
        owner += [sequence] * sum(span_lengths)
    batches = list(fill_batches(_spans(lengths), budget))
    seen = np.concatenate([np.repeat(b.sequences, np.diff(b.bounds)) for b in batches])
    assert seen.tolist() == owner
    for batch, following in pairwise(batches):
        assert batch.continues == (batch.sequences[-1] == following.sequences[0])
    assert not batches[-1].continues


def test_a_span_over_the_budget_is_a_batch_of_its_own():
    batches = fill_batches(_spans([[41], [9, 30], [41], [1]]), 40)
    assert [len(batch.ids) for batch in batches] == [41, 39, 41, 1]


@given(st.lists(st.integers(1, 9), min_size=1))
def test_the_longest_come_first_and_equal_lengths_keep_their_order(lengths):
    order = longest_first(lengths)
    assert sorted(order) == list(range(len(lengths)))
    ranked = [(-lengths[i], i) for i in order]
    assert ranked == sorted(ranked)
