"""SentencePiece vocabularies compared with the sentencepiece library."""

import io
import json
import random
import re
import unicodedata

import numpy as np
import pytest
from learning import learn_in_processes
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import Tokenizer, normalizers

from bertfam.data import vocabularies
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.data.vocabularies.learners import make_learner
from bertfam.data.vocabularies.sentence_piece.charsmap import check_charsmap
from bertfam.data.vocabularies.sentence_piece.composition import normalization_steps
from bertfam.data.vocabularies.sentence_piece.model_file import parse, processor_of
from bertfam.data.vocabularies.sentence_piece.vocabulary import SentencePiece
from bertfam.errors import UserError, warn_once

LOSSLESS = {"normalizer": "identity", "keep_spaces": True, "byte_fallback": True}


@pytest.mark.parametrize("options", [{}, LOSSLESS, {"normalizer": "nmt_nfkc_cf"}], ids=["nfkc", "lossless", "folded"])
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_ids_and_offsets_equal_those_of_the_library(learn, lines, kind, options):
    vocabulary = learn(kind, "albert", **options)
    library = SentencePieceProcessor(model_proto=vocabulary.model)
    assert library.get_piece_size() == vocabulary.size
    for line, ids in zip(lines, vocabulary.encode_batch(lines), strict=True):
        assert ids.tolist() == library.encode(line) and ids.dtype == np.int32
        pieces = library.encode(line, out_type="immutable_proto").pieces
        assert vocabulary.encode(line).offsets.tolist() == [[piece.begin, piece.end] for piece in pieces]
        assert vocabulary.encode(line).pieces == [library.id_to_piece(piece.id) for piece in pieces]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_lossless_vocabulary_restores_the_text(learn, lines, kind):
    vocabulary = learn(kind, "albert", **LOSSLESS)
    texts = [
        *lines,
        "the   cat\n\tsat",
        "cost ${x}",
        " a  b ",
        "  if x:\n    return  \n",
        "\u0000\u2028\U0001f9ff 👨‍👩‍👧 cafe\u0301",
        "",
    ]
    for text, ids in zip(texts, vocabulary.encode_batch(texts), strict=True):
        assert vocabulary.decode(ids) == text
        assert vocabulary.token_ids.unk not in ids


def test_white_space_and_compatibility_characters_are_normalised_by_default(learn):
    vocabulary = learn("unigram", "t5")
    folded, plain = vocabulary.encode_batch(["the   cat\n\tsat ", "the cat sat"])
    assert folded.tolist() == plain.tolist()
    composed, decomposed = vocabulary.encode_batch(["caf\u00e9", "cafe\u0301"])
    assert composed.tolist() == decomposed.tolist()
    text = "a ︰ b … c"
    encoding = vocabulary.encode(text)
    dots = [(text[a:b], piece) for piece, (a, b) in zip(encoding.pieces, encoding.offsets.tolist(), strict=True) if "." in piece]
    assert "".join(part for part, _ in dots).replace(" ", "") == "︰…" and "".join(p for _, p in dots).strip("▁").count(".") == 5


def test_byte_fallback_spells_emoji(learn):
    vocabulary = learn("bpe", "albert", byte_fallback=True)
    ids = vocabulary.encode_batch(["ok \U0001f9ff"])[0]
    assert vocabulary.pieces(ids)[-4:] == ["<0xF0>", "<0x9F>", "<0xA7>", "<0xBF>"] and vocabulary.decode(ids) == "ok \U0001f9ff"
    assert vocabulary.token_ids.starts_word[ids][-4:].sum() == 0
    assert not {"<0x41>"} & set(vocabulary.encode("a <0x41> b").pieces)  # typed by a user


def test_one_unknown_piece_covers_several_characters(learn):
    vocabulary = learn("unigram", "albert")
    encoding = vocabulary.encode("hello \U0001f9ff\U0001f9ff ok")
    place = encoding.ids.tolist().index(vocabulary.token_ids.unk)
    assert encoding.ids.tolist().count(vocabulary.token_ids.unk) == 1 and encoding.offsets[place].tolist() == [6, 8]
    assert encoding.pieces[place] == "<unk>"


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sentinel_includes_the_space_before_it_and_adds_none_after(learn, kind):
    vocabulary = learn(kind, "t5")
    first, dot = vocabulary.size - 1, vocabulary.pieces(range(vocabulary.size)).index(".")
    hello = vocabulary.encode_batch(["x Hello"])[0][len(vocabulary.encode_batch(["x"])[0]) :].tolist()
    assert vocabulary.encode_prompt("<extra_id_0>. Hello", frame=False).ids.tolist() == [first, dot, *hello]
    assert vocabulary.encode_prompt("<extra_id_0> .", frame=False).pieces[1][0] == "▁"
    encoding = vocabulary.encode_prompt("No <extra_id_1> He<extra_id_2>", frame=True)
    assert (
        encoding.ids[encoding.ids >= vocabulary.size - 100].tolist() == [first - 1, first - 2] and encoding.pieces[-1] == "</s>"
    )
    assert "No <extra_id_1> He<extra_id_2>"[slice(*encoding.offsets[encoding.pieces.index("<extra_id_1>")])] == " <extra_id_1>"
    assert vocabulary.decode(encoding.ids) == "No <extra_id_1> He <extra_id_2> </s>"
    assert vocabulary.decode(encoding.ids, skip_special=True) == "No He"


def test_scores_are_multiples_of_a_power_of_two(learn):
    """Require scores whose sums are exact, so that float32 and float64 break ties alike."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    scores = np.array([piece.score for piece in ModelProto.FromString(learn("unigram", "t5").model).pieces])
    assert np.array_equal(scores * 1024, np.round(scores * 1024)) and scores.min() > -40


def test_learning_gives_the_same_bytes_in_every_process():
    learn = (
        "from bertfam.data.vocabularies.sentence_piece.vocabulary import SentencePiece\n"
        "print(*(SentencePiece.train(texts, kind=kind, size=50).fingerprint for kind in ('unigram', 'bpe')))"
    )
    runs = learn_in_processes(learn, "12")
    assert len(runs) == 1 and next(iter(runs)).strip()


def test_long_lines_are_learnt_from():
    words = [f"w{number}ord" for number in range(2000)]
    with pytest.warns(UserWarning):
        vocabulary = SentencePiece.train([" ".join(words)], kind="bpe", size=5000)
    assert vocabulary.decode(vocabulary.encode_batch(["w1999ord"])[0]) == "w1999ord" and "▁w" in vocabulary.pieces(
        range(vocabulary.size)
    )


@pytest.mark.filterwarnings("ignore:the text allows only")
@pytest.mark.parametrize("kind", ["bpe", "byte_bpe"])
def test_words_that_no_trainer_takes_are_cut(kind):
    """SentencePiece would end the process, and others learn for minutes."""
    letters = "".join(random.Random(0).choices("acgt", k=70_000))
    learner = make_learner(kind, size=300, layout=LAYOUTS["gpt2" if kind == "byte_bpe" else "t5"])
    vocabulary = learner.learn(learner.count([letters, "\ufdfa" * 4000, "cat tag"]))
    ids = vocabulary.encode_batch([letters])[0]
    assert vocabulary.decode(ids) == letters and len(ids) < 60_000


@pytest.mark.parametrize(("kind", "largest_size"), [("unigram", 10), ("bpe", 14)])
def test_size_that_the_text_does_not_allow(kind, largest_size):
    with pytest.warns(UserWarning, match=f"allows only {largest_size} pieces, not the 4,000") as caught:
        vocabulary = SentencePiece.train(["a b c d a b c"], kind=kind, size=4000)
    assert vocabulary.size == largest_size and len(caught) == 1
    with pytest.warns(UserWarning, match="allows only"):
        assert SentencePiece.train(["a"], kind=kind, size=4000).size < 10
    with pytest.raises(UserError, match="no text to learn"):
        SentencePiece.train(["", " "], kind=kind, size=4000)
    with pytest.raises(UserError, match="size 8 is too small: the characters and special pieces of this text need 10"):
        SentencePiece.train(["a b c d a b c"], kind=kind, size=8)
    with pytest.raises(UserError, match="size 5 is too small"):
        SentencePiece.train(["a"], kind=kind, size=5)
    with pytest.raises(UserError, match="has none: choose another"):
        SentencePiece.train(["a"], kind=kind, size=50, layout=LAYOUTS["gpt2"])


def test_unreadable_models_are_refused(tmp_path, learn):
    (tmp_path / "spiece.model").write_bytes(b"\x80\x04pickled")
    with pytest.raises(UserError, match=r"spiece.model: .*not a SentencePiece model"):
        vocabularies.load(tmp_path)
    (tmp_path / "spiece.model").write_bytes(learn("bpe", "albert").model[:5000])
    with pytest.raises(UserError, match="spiece.model"):
        vocabularies.load(tmp_path)
    (tmp_path / "spiece.model").unlink()
    for name in ("a.model", "b.model"):
        (tmp_path / name).write_bytes(learn("bpe", "albert").model)
    with pytest.raises(UserError, match="holds a.model and b.model: keep one"):
        vocabularies.load(tmp_path)
    (tmp_path / "b.model").unlink()
    assert vocabularies.load(tmp_path).size == 1200


def test_number_of_sentinels_follows_tokenizer_config_json(tmp_path, learn):
    (tmp_path / "spiece.model").write_bytes(learn("bpe", "t5").model)
    assert len(vocabularies.load(tmp_path).token_ids.sentinels) == 100
    (tmp_path / "tokenizer_config.json").write_text('{"extra_ids": 3}')
    loaded = vocabularies.load(tmp_path)
    assert loaded.pieces(loaded.token_ids.sentinels) == ["<extra_id_0>", "<extra_id_1>", "<extra_id_2>"]
    assert loaded.token_ids.sentinels == (loaded.size - 1, loaded.size - 2, loaded.size - 3)
    with pytest.raises(UserError, match="no mask token"):
        loaded.token_ids.require("mask", "this")


@pytest.mark.parametrize(
    ("family", "stated", "text", "cleaned"),
    [
        ("albert", {}, "The ``Café'' İs ＦＵＬＬ", 'the "cafe" is full'),
        ("albert", {"keep_accents": True, "do_lower_case": False}, "The ``Café''", 'The "Café"'),
        ("xlnet", {}, "The ``Café'' ﬁ ŉ", 'The "Cafe" fi ʼn'),
    ],
)
def test_cleaning_of_published_models_equals_that_of_transformers(learn, lines, tmp_path, family, stated, text, cleaned):
    """Load a folder as published, with only the model and the settings of tokenizer_config.json."""
    transformers = pytest.importorskip("transformers")
    name = {"albert": "AlbertTokenizer", "xlnet": "XLNetTokenizer"}[family]
    plain = learn("unigram", family)
    (tmp_path / "spiece.model").write_bytes(plain.model)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, **stated}))
    vocabulary = vocabularies.load(tmp_path)
    assert vocabulary.encode_batch([text])[0].tolist() == plain.encode_batch([cleaned])[0].tolist()
    theirs = getattr(transformers, name).from_pretrained(tmp_path)
    ordinary = [line for line in lines if "[MASK]" not in line]
    for line, ids in zip(ordinary, vocabulary.encode_batch(ordinary), strict=True):
        assert ids.tolist() == theirs(line, add_special_tokens=False)["input_ids"], line

    quoted = "``Über'' ﬁx"
    spans = vocabulary.encode(quoted).offsets.tolist()
    assert {place for start, end in spans for place in range(start, end)} == set(range(len(quoted)))
    mask = vocabulary.pieces([vocabulary.token_ids.mask])[0]
    prompt = vocabulary.encode_prompt(f"The {mask} Ärger")
    place = prompt.pieces.index(mask)
    assert f"The {mask} Ärger"[slice(*prompt.offsets[place])].strip() == mask
    assert mask not in vocabulary.encode(f"The {mask} Ärger").pieces

    vocabulary.save(tmp_path / "saved")
    saved, auto = vocabularies.load(tmp_path / "saved"), transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert saved.fingerprint == vocabulary.fingerprint != plain.fingerprint and saved.cleaning == vocabulary.cleaning
    assert [ids.tolist() for ids in vocabulary.encode_batch(ordinary)] == auto(ordinary, add_special_tokens=False)["input_ids"]
    assert auto(f"The {mask} Ärger")["input_ids"] == prompt.ids.tolist()


@pytest.mark.parametrize(("family", "name"), [("t5", "T5Tokenizer"), ("albert", "AlbertTokenizer"), ("xlnet", "XLNetTokenizer")])
def test_folder_that_transformers_saved_without_the_model_file(learn, lines, tmp_path, family, name):
    transformers = pytest.importorskip("transformers")
    plain = learn("unigram", family)
    (tmp_path / "spiece.model").write_bytes(plain.model)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    getattr(transformers, name).from_pretrained(tmp_path).save_pretrained(tmp_path / "saved")
    assert not list((tmp_path / "saved").glob("*.model"))
    vocabulary, read = vocabularies.load(tmp_path), vocabularies.load(tmp_path / "saved")
    assert (
        read.layout == vocabulary.layout
        and read.token_ids.sentinels == vocabulary.token_ids.sentinels
        and read.cleaning == vocabulary.cleaning
    )
    assert read.pieces(range(read.size)) == vocabulary.pieces(range(vocabulary.size))
    for line, ids, same in zip(lines, vocabulary.encode_batch(lines), read.encode_batch(lines), strict=True):
        assert ids.tolist() == same.tolist()
        assert read.encode_prompt(line).offsets.tolist() == vocabulary.encode_prompt(line).offsets.tolist()

    content = json.loads((tmp_path / "saved" / "tokenizer.json").read_text())
    content["pre_tokenizer"] = {"type": "Whitespace"}
    (tmp_path / "saved" / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="not supported: put the SentencePiece model"):
        vocabularies.load(tmp_path / "saved")


_LANGUAGES = {
    "German": "Größe, Äpfel, Öl und Übermut für 3½ €",
    "Spanish": "¿Dónde está el niño? ¡Qué vergüenza!",
    "Finnish": "Ääkköset: hyvää yötä, Åbo",
    "Vietnamese": "tiếng Việt có nhiều dấu: ế ề ể ễ ệ ự",
    "Korean": "한국어로 쓴 문장입니다. 각 글자",
    "Japanese": "がぎぐげご パピプペポ ヴ １２３",
    "Greek": "άέήίόύώ ΐ ΰ ᾧ ᾳ",
    "Hindi": "क़लम ज़मीन पढ़ना ड़",
}


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [("unigram", {}), ("bpe", {}), ("unigram", {"normalizer": "nmt_nfkc_cf"}), ("unigram", {"normalizer": "identity"})],
)
def test_exported_tokenizer_agrees_on_every_unicode_form(learn, kind, options, form, tmp_path):
    vocabulary = learn(kind, "t5", **options)
    vocabulary.save(tmp_path)
    exported = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = [unicodedata.normalize(form, text) for text in _LANGUAGES.values()]
    expected = [ids.tolist() for ids in vocabulary.encode_batch(texts)]
    for language, text, ids in zip(_LANGUAGES, texts, expected, strict=True):
        assert exported.encode(text, add_special_tokens=False).ids == ids, language
    composed = [ids.tolist() for ids in vocabulary.encode_batch([unicodedata.normalize("NFC", text) for text in texts])]
    assert (composed == expected) == (options.get("normalizer") != "identity" or form in ("NFC", "NFKC"))


# Marks as keyboards give them, which is not the order of NFC, and what the library's normaliser treats otherwise.
_TYPED = {
    "Arabic": "م\u064fح\u064eم\u0651\u064eد ر\u064eس\u064fول\u064f الل\u0651\u064eه",
    "Hebrew": "ש\u05c1\u05b7ב\u05bc\u05b8ת ב\u05bc\u05b0ר\u05b5אש\u05c1\u05b4ית",
    "Thai": "ข\u0e49\u0e39 ท\u0e48\u0e38 น\u0e49ำ",
    "Latin": "e\u0302\u0323 e\u0323\u0302 Q\u0301 Ü\u0304 u\u0304\u0308",
    "marks across marks": "a\u05ae\u0315\u0300 x\u0301\u0327",
    "half-width kana": "ｶﾞｷﾞ ﾊﾟ ｱﾞ",
    "Korean": "감\u3133 가\u11a8 가\u3133 ᄒ\u1161\u11ab ㅎㅏ",
    "a mark first": "\u0301\u0323a",
    "line ends": "a\r\nb",
}


@pytest.mark.filterwarnings("ignore:the text allows only")
@pytest.mark.parametrize(("kind", "options"), [("unigram", {}), ("bpe", {}), ("unigram", {"normalizer": "nmt_nfkc_cf"})])
def test_exported_tokenizer_agrees_on_marks_in_any_order(kind, options, tmp_path):
    texts = list(_TYPED.values())
    settings = {"layout": LAYOUTS["t5"], "size": 260, "character_coverage": 1.0, **options}
    vocabulary = SentencePiece.train(texts * 3, kind=kind, **settings)
    vocabulary.save(tmp_path)
    exported = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for name, text in _TYPED.items():
        for form in (text, *(unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD"))):
            ids = vocabulary.encode_batch([form])[0].tolist()
            assert exported.encode(form, add_special_tokens=False).ids == ids, (name, ascii(form))


@pytest.mark.filterwarnings("ignore:the text allows only")
@pytest.mark.parametrize("normalizer", ["nmt_nfkc", "nmt_nfkc_cf"])
def test_exported_normalizer_agrees_on_random_sequences_of_letters_and_marks(normalizer):
    proto = parse(SentencePiece.train(["a b c"], kind="unigram", size=130, layout=LAYOUTS["t5"], normalizer=normalizer).model)
    spec = proto.normalizer_spec
    spec.escape_whitespaces = spec.add_dummy_prefix = spec.remove_extra_whitespaces = False
    normalize = processor_of(proto).normalize
    exported = normalizers.Sequence(normalization_steps(spec.precompiled_charsmap))
    letters, marks = (
        [*"".join(_TYPED.values()), *"ＥαИ\u0958\u09c7ﬁİ¨\u200b\u200d\u034f"],
        "\u0301\u0307\u0323\u0327\u0345\u05bc\u064e\u0651\u0e48\u3099ﾟ\u09be",
    )
    draws = random.Random(0)
    for _ in range(2000):
        text = "".join(draws.choice(letters) + "".join(draws.choices(marks, k=draws.randrange(4))) for _ in range(3))
        assert exported.normalize_str(text) == normalize(text), ascii(text)


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ({"content": "newword", "id": 5000, "special": True}, "added token 'newword' .* is not a piece"),
        ({"content": "<pad>", "id": 3, "special": True}, "added token '<pad>' .* is not a piece"),
        ({"content": "<pad>", "id": 0, "special": False}, "is not special"),
    ],
)
def test_added_tokens_beside_a_model_file_are_refused(learn, tmp_path, added, message):
    learn("unigram", "t5").save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["added_tokens"].append(added)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        vocabularies.load(tmp_path)


@pytest.mark.parametrize("number", [-1, 10**9, "5", True])
def test_impossible_numbers_of_sentinels_are_refused(learn, tmp_path, number):
    (tmp_path / "spiece.model").write_bytes(learn("unigram", "t5").model)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"extra_ids": number}))
    with pytest.raises(UserError, match="tokenizer_config.json: extra_ids is"):
        vocabularies.load(tmp_path)


def charsmap(units, strings=b"\0"):
    """Return a table of normalisation with these units; see `charsmap.py`."""
    trie = np.array([*units, *[0] * (-len(units) % 256)], "<u4").tobytes()
    return len(trie).to_bytes(4, "little") + trie + strings


def test_tables_of_normalisation_that_lead_out_of_themselves_are_refused(learn):
    proto = ModelProto.FromString(learn("unigram", "t5").model)
    whole = proto.normalizer_spec.precompiled_charsmap
    check_charsmap(whole)
    check_charsmap(b"")
    letter = 256  # base of the root, whose children lie beside it
    tables = {
        "cut": whole[:-9],
        "offset beyond the end": charsmap([letter << 10, *[0] * 255, *[(1 << 20 << 10) | byte for byte in range(256)]]),
        "value beyond the strings": charsmap([letter << 10, *[0] * (letter + 96), (512 << 10) | (1 << 8) | 97, *[1 << 30] * 800]),
        "size beyond the file": b"\xff\xff\xff\x7f" + whole[4:],
        "random units": whole[:4] + np.random.default_rng(0).bytes(4096 * 4) + whole[4 + 4096 * 4 :],
    }
    for name, table in tables.items():
        with pytest.raises(UserError, match="precompiled_charsmap"):
            check_charsmap(table)
            pytest.fail(name)
    proto.normalizer_spec.precompiled_charsmap = tables["random units"]
    with pytest.raises(UserError, match="precompiled_charsmap"):
        SentencePiece(proto.SerializeToString())


@pytest.mark.parametrize("change", ["bytes", "long", "nul", "nan", "infinite"])
def test_pieces_that_end_the_process_or_are_none_are_refused(learn, change):
    proto = ModelProto.FromString(learn("unigram", "t5").model)
    if change == "long":
        proto.pieces[10].piece = "a" * 100_000
    if change == "nul":
        proto.pieces[10].piece = "a\0b"
    if change in ("nan", "infinite"):
        proto.pieces[10].score = float(change[:3])
    model = proto.SerializeToString()
    if change == "bytes":
        piece = next(piece.piece.encode() for piece in proto.pieces if len(piece.piece) > 4 and piece.type == 1)
        model = model.replace(piece, b"\xff" * len(piece), 1)
    with pytest.raises(UserError, match="piece [0-9]+, .* the file is damaged"):
        SentencePiece(model)


def own_model(lines, **options):
    """Return a model file that the library has learnt with a user's own options."""
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines[:200]), model_writer=model, vocab_size=400, hard_vocab_limit=False, minloglevel=2, **options
    )
    return model.getvalue()


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("rule", ["nmt_nfkc", "nmt_nfkc_cf"])
def test_exported_tokenizer_of_a_users_own_model_agrees(lines, tmp_path, kind, prefix, rule):
    symbols = ["<sep>", "<SEP>", "<sep>s", "①", "[x|y]", "the▁cat"]
    model = own_model(lines, model_type=kind, add_dummy_prefix=prefix, normalization_rule_name=rule, user_defined_symbols=symbols)
    texts = [
        *(line for line in lines[:50] if "**" not in line),  # rows of one character have splits of equal scores
        "the<sep>cat <sep> sat<sep>s", "<sep>b", "<SEP>", "<SEP><SEP>b a<SEP>", "①", "x ①① [x|y]", "＜sep＞",
        "   the  cat ", " <sep>", "  <SEP>", " ", "", "<se p>", "<<sep>>", "the cat", "all the cats",
    ]  # fmt: skip
    vocabulary = SentencePiece(model)
    vocabulary.save(tmp_path)
    exported = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    library = SentencePieceProcessor(model_proto=model)
    for text, ids in zip(texts, vocabulary.encode_batch(texts), strict=True):
        theirs = exported.encode(text, add_special_tokens=False)
        assert theirs.ids == ids.tolist() == library.encode(text), (text, theirs.tokens)
    prompt = "the </s> cat<sep> </s>sat"
    ids = vocabulary.encode_prompt(prompt, frame=False).ids.tolist()
    assert exported.encode(prompt, add_special_tokens=False).ids == ids
    assert vocabularies.load(tmp_path).fingerprint == vocabulary.fingerprint


def test_an_exported_tokenizer_with_other_splits_is_reported_once(lines, learn, tmp_path, capsys):
    """Rows of one character have splits of equal scores, which are exact in models that bertfam has learnt."""
    warn_once.cache_clear()
    for kind in ("unigram", "bpe"):
        learn(kind, "t5").save(tmp_path)
    assert capsys.readouterr().err == ""
    vocabulary = SentencePiece(own_model(lines))
    for _ in range(2):
        vocabulary.save(tmp_path)
    (warning,) = capsys.readouterr().err.splitlines()
    text, theirs, ours = re.search("splits '(.*)' into (.*), and .* into (.*): few texts", warning).groups()
    exported = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert exported.encode(text, add_special_tokens=False).tokens == theirs.split() != ours.split()
    assert vocabulary.pieces(vocabulary.encode_batch([text])[0]) == ours.split()


def test_a_model_with_spaces_after_words_is_refused(lines, tmp_path):
    (tmp_path / "spiece.model").write_bytes(own_model(lines, treat_whitespace_as_suffix=True))
    with pytest.raises(UserError, match="spiece.model: .*treat_whitespace_as_suffix"):
        vocabularies.load(tmp_path)
