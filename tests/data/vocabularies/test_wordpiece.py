"""WordPiece vocabularies: normalisation, training, files, and equality with tokenizers and transformers."""

import json
import os
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from learning import learn_in_processes
from time_limits import FAR_SECONDS
from tokenizers import BertWordPieceTokenizer

from bertfam.data import vocabularies
from bertfam.data.vocabularies import word_table
from bertfam.data.vocabularies.added_pieces import AddedPiece
from bertfam.data.vocabularies.wordpiece import SPECIAL_PIECES, WordPiece
from bertfam.errors import UserError

ENGLISH = ["the cat sat on the mat", "the cats sat, and the mats were flat", "a caterpillar chatted"] * 4
JAPANESE = ["がかばはでて がが かか", "はば がか"] * 3
KOREAN = [f"한국어 문장 {i} 입니다" for i in "가나다라마"] * 3


def vocabulary(pieces, **settings):
    return WordPiece([*SPECIAL_PIECES, *pieces.split()], **settings)


def pieces(vocabulary, text):
    """Return the pieces of running text, which equal those of the prompt without [CLS] and [SEP]."""
    running = vocabulary.pieces(vocabulary.encode_batch([text])[0])
    assert vocabulary.encode_prompt(text).pieces[1:-1] == running
    return running


def test_a_vocabulary_with_counts_is_refused_by_its_tabs(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\t7\n" for piece in [*SPECIAL_PIECES, "the"]))
    with pytest.raises(UserError, match="vocab.txt:1: has a tab"):
        vocabularies.load(tmp_path)
    words = "".join(f"word{number}\t7\n" for number in range(9))
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIAL_PIECES) + "\n" + words)
    with pytest.raises(UserError, match="vocab.txt:6: has a tab"):
        vocabularies.load(tmp_path)


def test_spaces_and_empty_lines_of_a_vocabulary_are_named(tmp_path, capsys):
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{piece}  \n" for piece in [*SPECIAL_PIECES, "the"]))
    with pytest.raises(UserError, match="vocab.txt:1: has a space beside the piece"):
        vocabularies.load(tmp_path)
    path.write_text("\n".join([*SPECIAL_PIECES, "the", "", ""]) + "\n")
    with pytest.raises(UserError, match="vocab.txt:7: the line is empty, as 1 other"):
        vocabularies.load(tmp_path)
    path.write_text("\n".join([*SPECIAL_PIECES, "", "the"]) + "\n")
    assert vocabularies.load(tmp_path).pieces([6]) == ["the"]  # as in transformers
    assert f"{path}:6: the line is empty" in capsys.readouterr().err


@pytest.fixture
def assert_same_in_transformers(tmp_path):
    """A function that compares the exported folder, read by transformers, with the vocabulary."""
    transformers = pytest.importorskip("transformers")

    def check(vocabulary, texts, name="exported"):
        vocabulary.save(tmp_path / name, model_max_length=128)
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / name)
        assert tokenizer.model_max_length == 128
        assert (tokenizer.pad_token_id, tokenizer.mask_token_id) == (vocabulary.token_ids.pad, vocabulary.token_ids.mask)
        for text, ids in zip(texts, vocabulary.encode_batch(texts), strict=True):
            assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids.tolist()
            prompt = vocabulary.encode_prompt(text)
            encoded = tokenizer(text, return_offsets_mapping=True)
            assert encoded["input_ids"] == prompt.ids.tolist()
            assert encoded["offset_mapping"] == [tuple(pair) for pair in prompt.offsets.tolist()]
            assert set(encoded["token_type_ids"]) == {0}
            assert tokenizer.decode(ids) == vocabulary.decode(ids)
        return tokenizer

    return check


ACCENTS = "cafe café na ##ive ##ïve"
ACCENT_CASES = [
    ({"lowercase": False}, "na ##ïve café"),
    ({"lowercase": True}, "na ##ive cafe"),
    ({"lowercase": True, "strip_accents": False}, "na ##ïve café"),
    ({"lowercase": False, "strip_accents": True}, "na ##ive cafe"),
]


ODD = [
    "", " ", "  the  cat\tsat,on the\u00a0mat. ", "[MASK]the [SEP] [CLS]", "日本 cat日本sat",
    "re\u0301sume\u0301 \u0301x café CAFÉ",
    "x" * 101 + " cat", "the\u200dcat\ufffd\x00\x07 sat", "unknown ☃ words", "İstanbul ΟΔΟΣ ﬁn",
]  # fmt: skip


@pytest.mark.parametrize("settings", [{}, {"lowercase": False}, {"strip_accents": False, "handle_chinese_chars": False}])
@pytest.mark.parametrize("bound", [3, 1000])
def test_words_looked_up_give_the_ids_of_whole_texts(settings, bound, monkeypatch):
    monkeypatch.setattr(word_table, "_WORDS", bound)
    learnt = WordPiece.train([*ENGLISH, *JAPANESE], size=60, **settings)
    added = [AddedPiece("the cat", apart=True)]
    with_spaces = WordPiece([*learnt.pieces(range(learnt.size)), "the cat"], added=added, **settings)
    for vocabulary in (learnt, with_spaces):
        for texts in (ODD, ODD[2:3], [*ENGLISH, *JAPANESE, *KOREAN], [*reversed(ODD)], []):
            ids, sizes = vocabulary.encode_flat(texts)
            expected = vocabulary.encode_batch(texts)
            assert ids.dtype == np.int32 and ids.tolist() == [id for text in expected for id in text.tolist()]
            assert sizes.tolist() == list(map(len, expected))
    assert with_spaces.encode_flat(["see the cat"])[0][-1] == learnt.size


@pytest.mark.parametrize(("settings", "expected"), ACCENT_CASES)
def test_accents_are_stripped_with_capitals_unless_set_otherwise(settings, expected, assert_same_in_transformers, tmp_path):
    wordpiece = vocabulary(ACCENTS, **settings)
    assert pieces(wordpiece, "naïve café") == expected.split()
    assert_same_in_transformers(wordpiece, ["naïve café", "Naïve Café"])
    (tmp_path / "exported" / "tokenizer.json").unlink()  # the settings survive in vocab.txt + tokenizer_config.json too
    loaded = vocabularies.load(tmp_path / "exported")
    assert pieces(loaded, "naïve café") == expected.split() and loaded.fingerprint == wordpiece.fingerprint


@pytest.mark.filterwarnings("ignore:the text allows")
def test_japanese_voiced_kana_keep_their_marks_unless_accents_are_stripped():
    assert pieces(vocabulary("か が"), "が か") == ["か", "か"]  # as BERT is defined
    assert pieces(vocabulary("か が", strip_accents=False), "が か") == ["が", "か"]
    assert pieces(vocabulary("か が", lowercase=False), "が か") == ["が", "か"]
    kept, merged = (WordPiece.train(JAPANESE, size=40, strip_accents=strip) for strip in (False, None))
    assert len({tuple(ids) for ids in kept.encode_batch(["が", "か"])}) == 2
    assert len({tuple(ids) for ids in merged.encode_batch(["が", "か"])}) == 1


@pytest.mark.filterwarnings("ignore:the text allows")
@pytest.mark.parametrize("texts", [KOREAN, JAPANESE, ENGLISH, ["日本ごはん 한국어로", "naïve İstanbul"]])
@pytest.mark.parametrize("lowercase", [True, False])
def test_training_text_has_no_unknown_piece(texts, lowercase, assert_same_in_transformers):
    trained = WordPiece.train(texts, size=80, lowercase=lowercase)
    assert all(trained.token_ids.unk not in ids for ids in trained.encode_batch(texts))
    assert_same_in_transformers(trained, texts)


def test_composed_korean_vocabulary_is_unknown_when_uncased():
    assert pieces(vocabulary("한국", lowercase=True), "한국") == ["[UNK]"]
    assert pieces(vocabulary("한국", lowercase=False), "한국") == ["한국"]


def test_decomposed_characters_differ_from_composed_ones_when_cased(assert_same_in_transformers):
    texts = ["caf\u00e9", "cafe\u0301", "か\u3099"]
    uncased, cased = vocabulary("cafe café が"), vocabulary("cafe café が", lowercase=False)
    assert pieces(uncased, texts[0]) == pieces(uncased, texts[1]) == ["cafe"]
    assert pieces(cased, texts[0]) == ["café"] and pieces(cased, texts[1]) == ["[UNK]"]
    assert_same_in_transformers(uncased, texts, "uncased")
    assert_same_in_transformers(cased, texts, "cased")


def test_private_use_and_invisible_characters_give_no_piece(assert_same_in_transformers):
    wordpiece = vocabulary("ok", lowercase=False)
    texts = ["ok \uf059 ok", "ok \U000fe4fa ok", "\u200d", "\ufeff", "\x07\x1b", ""]
    assert [pieces(wordpiece, text) for text in texts] == [["ok", "ok"]] * 2 + [[]] * 4
    assert [ids.shape for ids in wordpiece.encode_batch(texts[2:])] == [(0,)] * 4
    assert_same_in_transformers(wordpiece, texts[:2])


def test_emoji_are_unknown(assert_same_in_transformers):
    uncased, cased = vocabulary("hello ok"), vocabulary("hello ok", lowercase=False)
    assert pieces(uncased, "hello 😃") == ["hello", "[UNK]"]
    assert pieces(uncased, "hello😃") == ["[UNK]"]
    assert uncased.encode_prompt("hello😃 ok").offsets.tolist() == [[0, 0], [0, 6], [7, 9], [0, 0]]
    assert pieces(uncased, "ok ok\ufe0f") == ["ok", "ok"] and pieces(cased, "ok ok\ufe0f") == ["ok", "[UNK]"]
    assert_same_in_transformers(uncased, ["hello 😃", "hello😃", "ok ok\ufe0f"])


def test_ascii_symbols_are_separate_pieces(assert_same_in_transformers):
    wordpiece = vocabulary("price $ 5 < a + b > " + " ".join("=^`|~"))
    assert pieces(wordpiece, "price $5<a+b>") == "price $ 5 < a + b >".split()
    assert pieces(wordpiece, "$+<=>^`|~") == list("$+<=>^`|~")
    printable = "".join(map(chr, range(33, 127)))
    symbols = [c for c in printable if not c.isalnum()]
    assert [len(ids) for ids in wordpiece.encode_batch(symbols)] == [1] * len(symbols)
    assert_same_in_transformers(wordpiece, ["price $5<a+b>", *symbols])


def test_limit_of_word_length_is_in_characters(assert_same_in_transformers):
    thai = "กขคง" * 15
    wordpiece = vocabulary("x ##x " + " ".join([*"กขคง", *("##" + c for c in "กขคง")]))
    assert len(pieces(wordpiece, "x" * 100)) == 100 and pieces(wordpiece, "x" * 101) == ["[UNK]"]
    assert wordpiece.encode_prompt("x" * 101).offsets[1].tolist() == [0, 101]
    assert len(pieces(wordpiece, thai)) == 60 and wordpiece.token_ids.unk not in wordpiece.encode_batch([thai])[0]
    assert_same_in_transformers(wordpiece, ["x" * 100, "x" * 101, thai])


def test_ideographs_are_words_but_kana_and_hangul_are_not(assert_same_in_transformers):
    wordpiece = vocabulary("日 本 ごはん 한국어로 \U00020000 Ａ b", lowercase=False)
    assert pieces(wordpiece, "日本ごはん") == ["日", "本", "ごはん"]
    assert pieces(wordpiece, "한국어로") == ["한국어로"]
    assert pieces(wordpiece, "b\U00020000b") == ["b", "\U00020000", "b"]
    assert pieces(wordpiece, "b\u3000Ａ\u00a0b\u2028b") == ["b", "Ａ", "b", "b"]
    assert_same_in_transformers(wordpiece, ["日本ごはん", "한국어로", "b\U00020000b", "b\u3000Ａ\u00a0b\u2028b"])
    whole = vocabulary("日本ごはん 日 本 ごはん", lowercase=False, handle_chinese_chars=False)
    assert pieces(whole, "日本ごはん") == ["日本ごはん"]
    assert_same_in_transformers(whole, ["日本ごはん"], "whole")


def test_dotted_capital_i_keeps_offsets(assert_same_in_transformers):
    wordpiece = vocabulary("istanbul isparta")
    encoding = wordpiece.encode_prompt("İstanbul ISPARTA")
    assert encoding.pieces == ["[CLS]", "istanbul", "isparta", "[SEP]"]
    assert encoding.offsets.tolist() == [[0, 0], [0, 8], [9, 16], [0, 0]]
    assert_same_in_transformers(wordpiece, ["İstanbul ISPARTA"])


def test_special_pieces_are_text_in_running_text_and_control_ids_in_prompts():
    wordpiece = vocabulary("bert writes [ ] mask and sep , . the ok")
    text = "BERT writes [MASK] and [SEP], [PAD][CLS][UNK]."
    controls = set(wordpiece.token_ids.special) - {wordpiece.token_ids.unk}
    failures = []

    def encode():
        for _ in range(50):
            if any(controls & set(ids.tolist()) for ids in wordpiece.encode_batch([text] * 20)):
                failures.append(1)
            if wordpiece.encode_prompt("the [MASK] ok").ids[2] != wordpiece.token_ids.mask:
                failures.append(2)

    threads = [threading.Thread(target=encode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert wordpiece.pieces(wordpiece.encode_batch([text])[0])[:9] == "bert writes [ mask ] and [ sep ]".split()
    prompt = wordpiece.encode_prompt("the [MASK] ok [mask]")
    assert prompt.pieces == "[CLS] the [MASK] ok [ mask ] [SEP]".split()
    assert prompt.offsets[2].tolist() == [4, 10] and prompt.ids.dtype == np.int32
    assert wordpiece.decode(prompt.ids) == "[CLS] the [MASK] ok [ mask ] [SEP]"
    assert wordpiece.decode(prompt.ids, skip_special=True) == "the ok [ mask ]"


def test_special_ids_are_fixed():
    trained = WordPiece.train(ENGLISH, size=60)
    ids = trained.token_ids
    assert (ids.pad, ids.unk, ids.cls, ids.sep, ids.mask) == (0, 1, 2, 3, 4)
    assert ids.special == (0, 1, 2, 3, 4) and trained.size == 60
    assert trained.encode_batch([]) == [] and trained.encode_batch(["the"])[0].dtype == np.int32
    assert trained.pieces(trained.encode_batch(["the cat"])[0]) == ["the", "cat"]
    assert trained.decode(trained.encode_batch(["The cats, sat."])[0]) == "the cats, sat [UNK]"
    with pytest.raises(UserError, match="id 60 is outside the vocabulary of 60"):
        trained.decode([60])


def test_training_is_deterministic_in_every_process():
    learn = "from bertfam.data.vocabularies.wordpiece import WordPiece\nprint(WordPiece.train(texts, size=70).fingerprint)"
    runs = learn_in_processes(learn, "123")
    assert len(runs) == 1 and next(iter(runs)).strip()


def test_size_that_the_text_does_not_allow_gives_a_smaller_vocabulary():
    with pytest.warns(UserWarning, match="allows only 9 pieces .* not the 4,000") as caught:
        trained = WordPiece.train(["a b c d a b c"], size=4000)
    assert trained.size == 9 and len(caught) == 1
    with pytest.warns(UserWarning, match="allows only 6 pieces"):
        assert WordPiece.train(["a"], size=4000).size == 6


def test_most_frequent_characters_are_kept_if_there_are_too_many():
    with pytest.warns(UserWarning, match=r"7 distinct characters .* room for 4: \d+\.\d+% of all") as caught:
        trained = WordPiece.train(["日日日日 本本本 語語 文 字 学 校"], size=9)
    assert trained.size == 9 and len(caught) == 1
    assert {"日", "本", "語"} < set(trained.pieces(range(9)))


@pytest.mark.parametrize("size", [7, 20, 40, 60, 90])
def test_vocabulary_never_exceeds_its_size(size):
    texts = ["abcdefgh ijklmnop qrstuvwx yz", "zyx wvutsrqponml kjihgfedcba", "ÀÉÎ õü 0123456789"] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert WordPiece.train(texts, size=size, lowercase=False).size <= size


def test_min_frequency_excludes_rare_words():
    with pytest.warns(UserWarning):
        rare = WordPiece.train(["zebra", *ENGLISH], size=999, min_frequency=2)
    with pytest.warns(UserWarning):
        all_of_it = WordPiece.train(["zebra", *ENGLISH], size=999, min_frequency=1)
    assert len(rare.encode_batch(["zebra"])[0]) > 1 and len(all_of_it.encode_batch(["zebra"])[0]) == 1


@pytest.mark.parametrize(
    ("texts", "settings", "message"),
    [
        ([], {}, "no text to learn"),
        (["", "  ", "\u200d"], {}, "no text to learn"),
        (["a"], {"size": 5}, "size 5 is too small"),
        (["a"], {"min_frequency": 0}, "min_frequency is 0"),
    ],
)
def test_training_without_text_or_with_bad_settings_is_refused(texts, settings, message):
    with pytest.raises(UserError, match=message):
        WordPiece.train(texts, **({"size": 100} | settings))


def test_save_and_load(tmp_path):
    trained = WordPiece.train(ENGLISH, size=60)
    trained.save(tmp_path / "a" / "b")
    assert sorted(p.name for p in (tmp_path / "a" / "b").iterdir()) == [
        "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt",
    ]  # fmt: skip
    loaded = vocabularies.load(tmp_path / "a" / "b")
    assert loaded.fingerprint == trained.fingerprint
    trained.save(tmp_path / "a" / "b", model_max_length=64)
    assert json.loads((tmp_path / "a" / "b" / "tokenizer_config.json").read_text())["model_max_length"] == 64
    assert WordPiece([*SPECIAL_PIECES, "a"]).fingerprint != WordPiece([*SPECIAL_PIECES, "a"], lowercase=False).fingerprint
    assert WordPiece([*SPECIAL_PIECES, "a"]).fingerprint == WordPiece([*SPECIAL_PIECES, "a"], strip_accents=True).fingerprint


def test_special_pieces_may_have_any_id(tmp_path, assert_same_in_transformers):
    published = ["[PAD]", *(f"[unused{i}]" for i in range(9)), "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##s"]
    (tmp_path / "vocab.txt").write_text("\n".join(published) + "\n")
    loaded = vocabularies.load(tmp_path)
    ids = loaded.token_ids
    assert (ids.pad, ids.unk, ids.cls, ids.sep, ids.mask) == (0, 10, 11, 12, 13)
    assert loaded.encode_prompt("The [MASK] thes").ids.tolist() == [11, 14, 13, 14, 15, 12]
    assert_same_in_transformers(loaded, ["The thes", "xyz"])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "holds no vocabulary"),
        ({"config.json": "{}"}, "holds no vocabulary .*tokenizer.save_pretrained"),
        ({"vocab.txt": "a\nb\n"}, r"the vocabulary has no \[PAD\] \[UNK\]"),
        ({"vocab.txt": "", "tokenizer_config.json": '{"unk_token": "[UNK]"}'}, r"the vocabulary has no \[PAD\] \[UNK\]"),
        ({"vocab.txt": "\n".join([*SPECIAL_PIECES, "a", "a"])}, "holds 'a' twice"),
        ({"vocab.txt": "\n".join([*SPECIAL_PIECES, "Paris"])}, "holds 'Paris', .*do_lower_case"),
        ({"tokenizer.json": "{"}, "tokenizer.json is not JSON"),
        ({"tokenizer.json": '{"model": {"type": "BPE"}}'}, "does not split text into bytes as GPT-2 does"),
        ({"tokenizer.json": '{"model": {"type": "WordPiece"}}'}, "does not normalise and split text as BERT does"),
        (
            {"tokenizer.json": '{"model": {"type": "WordPiece"}, "normalizer": {"type": "NFC"}}'},
            "the .?NFC.? as normalizer, and only BertNormalizer",
        ),
    ],
)
def test_folders_without_a_vocabulary_are_refused(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message) as raised:
        vocabularies.load(tmp_path)
    assert str(tmp_path) in str(raised.value) and "\n" not in str(raised.value)
    with pytest.raises(UserError, match="is not a folder"):
        vocabularies.load(tmp_path / "none")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_forked_processes_encode_without_warnings():
    code = (
        "import os\nfrom bertfam.data.vocabularies.wordpiece import WordPiece, SPECIAL_PIECES\n"
        "v = WordPiece([*SPECIAL_PIECES, 'a'])\nv.encode_batch(['a'] * 5000)\n"
        "pid = os.fork()\nif not pid:\n    v.encode_batch(['a'] * 5000)\n    os._exit(0)\n"
        "raise SystemExit(os.waitpid(pid, 0)[1])"
    )
    env = {key: value for key, value in os.environ.items() if key != "TOKENIZERS_PARALLELISM"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    # Python 3.12 itself warns of forks in programs with threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    process = subprocess.run(command, env=env, capture_output=True, text=True, timeout=FAR_SECONDS)
    assert process.returncode == 0 and process.stderr == ""


@pytest.mark.parametrize("options", [{}, {"cased": True}, {"strip_accents": False, "split_ideographs": False}], ids=str)
def test_wordpiece_ids_and_offsets_equal_those_of_the_library(learn, lines, options, tmp_path):
    wordpiece = learn("wordpiece", "bert", **options)
    wordpiece.save(tmp_path)
    library = BertWordPieceTokenizer(
        str(tmp_path / "vocab.txt"),
        lowercase=not options.get("cased", False),
        strip_accents=options.get("strip_accents"),
        handle_chinese_chars=options.get("split_ideographs", True),
    )
    library._tokenizer.encode_special_tokens = True
    texts = [*lines, "", "İstanbul ISPARTA", "x" * 101, "ok \uf059 ok", "hello😃 ok\ufe0f"]
    for text, ids in zip(texts, wordpiece.encode_batch(texts), strict=True):
        theirs, encoding = library.encode(text, add_special_tokens=False), wordpiece.encode(text)
        assert ids.tolist() == encoding.ids.tolist() == theirs.ids
        assert encoding.pieces == theirs.tokens and [tuple(pair) for pair in encoding.offsets.tolist()] == theirs.offsets


def test_whole_words_are_the_most_frequent_ones():
    text = ["The cat and the dog, and the bird.", "the cat sat", "a dog sat"]
    with pytest.warns(UserWarning, match="only 10 pieces with min_frequency 2, not the 50 requested"):
        every = WordPiece.train(text, size=50, whole_words=True)
    assert every.pieces(range(5, 10)) == ["the", "and", "cat", "dog", "sat"]
    few = WordPiece.train(text, size=7, whole_words=True)
    assert few.pieces(range(5, 7)) == ["the", "and"]
    assert few.pieces(few.encode_batch(["The and then tha"])[0]) == ["the", "and", "[UNK]", "[UNK]"]
    with pytest.raises(UserError, match="no word occurs 9 times"):
        WordPiece.train(text, size=50, whole_words=True, min_frequency=9)
