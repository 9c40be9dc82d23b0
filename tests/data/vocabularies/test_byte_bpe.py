"""Byte-level BPE vocabularies compared with the tokenizers library."""

import json

import pytest
from learning import learn_in_processes
from tokenizers import ByteLevelBPETokenizer, Tokenizer
from tokenizers.processors import ByteLevel

from bertfam.data import vocabularies
from bertfam.data.vocabularies.byte_bpe import ByteBpe
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.errors import UserError

HARD = [
    "",
    " ",
    "  a  b ",
    "the   cat\n\tsat",
    "x\n\n  y",
    "\u0000\u2028\U0001f9ff 👨‍👩‍👧 e\u0301",
    "it's we'll DON'T",
    "<|endoftext|><mask>",
    "\u00a0x",
]


@pytest.mark.parametrize(("layout", "trims"), [("gpt2", False), ("roberta", True)])
def test_ids_and_offsets_equal_those_of_the_library_and_decoding_restores_the_text(learn, lines, layout, trims, tmp_path):
    vocabulary = learn("byte_bpe", layout)
    vocabulary.save(tmp_path)
    library = ByteLevelBPETokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    library.post_processor = ByteLevel(add_prefix_space=False, trim_offsets=trims)  # as RoBERTa's
    texts = [*lines, *HARD]
    for text, ids, theirs in zip(texts, vocabulary.encode_batch(texts), library.encode_batch(texts), strict=True):
        assert ids.tolist() == theirs.ids and vocabulary.decode(ids) == text
        encoding = vocabulary.encode(text)
        assert encoding.pieces == theirs.tokens and [tuple(pair) for pair in encoding.offsets.tolist()] == theirs.offsets


def test_words_start_with_a_space_or_an_ideograph(learn):
    vocabulary = learn("byte_bpe", "roberta")
    starts = dict(zip(vocabulary.pieces(range(vocabulary.size)), vocabulary.token_ids.starts_word.tolist(), strict=True))
    assert starts["Ġ"] and starts["Ċ"] and not starts["a"] and starts["<mask>"] and starts["Ġthe"] and not starts["!"]
    ideograph = ByteBpe.train(["字字字字 字字"], size=300)
    pieces = ideograph.pieces(ideograph.encode_batch(["字字"])[0])
    assert [bool(starts) for starts in ideograph.token_ids.starts_word[ideograph.encode_batch(["字"])[0]]] == [True], pieces


def test_later_sentences_are_encoded_as_within_a_text(learn):
    vocabulary = learn("byte_bpe", "gpt2")
    whole = vocabulary.encode_batch(["The cat. The function"])[0].tolist()
    separate = vocabulary.encode_batch(["The cat.", vocabulary.joint + "The function"])
    assert [id for ids in separate for id in ids.tolist()] == whole


def test_learning_gives_the_same_vocabulary_in_every_process():
    learn = "from bertfam.data.vocabularies.byte_bpe import ByteBpe\nprint(ByteBpe.train(texts, size=300).fingerprint)"
    runs = learn_in_processes(learn, "12")
    assert len(runs) == 1 and next(iter(runs)).strip()


def test_pieces_equal_those_that_the_library_learns(lines):
    """Avoid ties, which the two may break differently."""
    library = ByteLevelBPETokenizer()
    library.train_from_iterator(lines, vocab_size=400, min_frequency=30, show_progress=False)
    vocabulary = ByteBpe.train(lines, size=401, layout=LAYOUTS["gpt2"], min_frequency=30)
    assert set(vocabulary.pieces(range(400))) == set(library.get_vocab())


def test_sizes_that_the_text_does_not_allow(tmp_path):
    with pytest.warns(UserWarning, match=r"allows only 26\d pieces .*, not the 4,000") as caught:
        ByteBpe.train(["a b c d a b c"], size=4000)
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="allows only 261 pieces"):
        ByteBpe.train(["a"], size=4000)
    for size, text, message in [(200, "a", "the 256 bytes and 5 special pieces need 261"), (300, "", "no text to learn")]:
        with pytest.raises(UserError, match=message):
            ByteBpe.train([text], size=size)


def test_vocab_json_and_merges_txt_are_enough(learn, tmp_path):
    """Load the two files alone, with CRLF line ends and no version line."""
    vocabulary = learn("byte_bpe", "gpt2")
    vocabulary.save(tmp_path / "whole")
    (tmp_path / "bare").mkdir()
    merges = (tmp_path / "whole" / "merges.txt").read_text().split("\n", 1)
    assert merges[0] == "#version: 0.2"
    (tmp_path / "bare" / "merges.txt").write_bytes(merges[1].replace("\n", "\r\n").encode())
    (tmp_path / "bare" / "vocab.json").write_bytes((tmp_path / "whole" / "vocab.json").read_bytes())
    assert vocabularies.load(tmp_path / "bare").fingerprint == vocabulary.fingerprint
    (tmp_path / "bare" / "merges.txt").write_text("\ufeff" + "\n".join(merges), encoding="utf-8")  # a byte-order mark
    assert vocabularies.load(tmp_path / "bare").fingerprint == vocabulary.fingerprint

    (tmp_path / "bare" / "merges.txt").write_text("#version: 0.2\na b\nabc\n")
    with pytest.raises(UserError, match=r"merges.txt:3: .*two pieces"):
        vocabularies.load(tmp_path / "bare")
    (tmp_path / "bare" / "merges.txt").write_text("q \u0100\n")
    with pytest.raises(UserError, match="not in the vocabulary"):
        vocabularies.load(tmp_path / "bare")
    (tmp_path / "bare" / "merges.txt").unlink()
    with pytest.raises(UserError, match="merges.txt is missing"):
        vocabularies.load(tmp_path / "bare")
    (tmp_path / "bare" / "merges.txt").write_text("")
    (tmp_path / "bare" / "vocab.json").write_text(json.dumps({"a": 0, "<|endoftext|>": 1}))
    with pytest.raises(UserError, match="has no piece for 255 of the 256 bytes"):
        vocabularies.load(tmp_path / "bare")


def test_tokenizer_json_of_another_kind_is_refused(learn, tmp_path):
    learn("byte_bpe", "gpt2").save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    for change, message in [
        ({"normalizer": {"type": "NFKC"}}, "tokenizer.json: the normalizer .*NFKC"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}}, "normalizer .*Lowercase"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "does not split text into bytes as GPT-2 does"),
        ({"model": content["model"] | {"end_of_word_suffix": "</w>"}}, "a BPE with end_of_word_suffix is not supported"),
        ({"model": {"type": "Unigram"}}, "put the SentencePiece model that it was made from"),
        ({"model": {"type": "WordLevel"}}, "is a WordLevel tokenizer: only WordPiece, byte-level BPE and Unigram"),
    ]:
        (tmp_path / "tokenizer.json").write_text(json.dumps(content | change))
        with pytest.raises(UserError, match=message):
            vocabularies.load(tmp_path)


@pytest.mark.parametrize("normalizer", [{"type": "NFC"}, {"type": "Sequence", "normalizers": [{"type": "NFC"}]}])
def test_a_normalizer_that_composes_is_used_and_written_again(learn, tmp_path, normalizer):
    transformers = pytest.importorskip("transformers")
    plain = learn("byte_bpe", "roberta")
    plain.save(tmp_path / "theirs")
    path = tmp_path / "theirs" / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": normalizer}))
    stated = json.loads((tmp_path / "theirs/tokenizer_config.json").read_text())
    assert stated["tokenizer_class"] == "RobertaTokenizer"  # which does not compose, whatever tokenizer.json says
    with pytest.raises(UserError, match="composes text .NFC., and the class RobertaTokenizer"):
        vocabularies.load(tmp_path / "theirs")
    (tmp_path / "theirs/tokenizer_config.json").write_text(json.dumps(stated | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    vocabulary = vocabularies.load(tmp_path / "theirs")
    text = "The cafe\u0301s of A\u030angstro\u0308m"
    theirs = Tokenizer.from_file(str(path)).encode(text, add_special_tokens=False)
    ours = vocabulary.encode(text)
    assert ours.ids.tolist() == theirs.ids == plain.encode("The caf\u00e9s of \u00c5ngstr\u00f6m").ids.tolist()
    assert list(map(tuple, ours.offsets.tolist())) == theirs.offsets and ours.offsets.max() == len(text)
    assert vocabulary.encode_batch([text])[0].tolist() == theirs.ids
    vocabulary.save(tmp_path / "ours")
    saved, auto = vocabularies.load(tmp_path / "ours"), transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert auto(text, add_special_tokens=False)["input_ids"] == theirs.ids
    assert saved.fingerprint == vocabulary.fingerprint != plain.fingerprint
