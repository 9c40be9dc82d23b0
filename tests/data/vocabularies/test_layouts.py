"""Every kind of vocabulary with the control tokens of every family: ids, frames, words, and reading by transformers."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from bertfam.data import vocabularies
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.data.vocabularies.learners import make_learner

KINDS = ["wordpiece", "unigram", "bpe", "byte_bpe"]
BOTH = [
    ("wordpiece", "bert"), ("wordpiece", "roberta"), ("unigram", "albert"), ("unigram", "t5"), ("unigram", "xlnet"),
    ("bpe", "albert"), ("bpe", "t5"), ("bpe", "big_bird"), ("byte_bpe", "roberta"), ("byte_bpe", "gpt2"), ("byte_bpe", "t5"),
]  # fmt: skip
# Ids of pad, unk, cls, sep, eos and mask in the published vocabularies; negative ids count from the end, None means no token.
IDS = {
    "bert": (0, 1, 2, 3, None, 4),
    "roberta": (1, 3, 0, 2, 2, -1),
    "gpt2": (-1, -1, None, None, -1, None),
    "t5": (0, 2, None, None, 1, None),
    "albert": (0, 1, 2, 3, None, 4),
    "xlnet": (5, 0, 3, 4, 7, 6),
}
FRAMES = {
    "bert": ("[CLS]", "[SEP]"), "roberta": ("<s>", "</s>"), "gpt2": ("", ""), "t5": ("", "</s>"), "albert": ("[CLS]", "[SEP]"),
    "xlnet": ("", "<sep> <cls>"), "big_bird": ("[CLS]", "[SEP]"),
}  # fmt: skip
PROMPTS = [
    "the [MASK] is",
    "the <mask>, is",
    "[MASK]",
    "<extra_id_0>. Hello",
    "No <extra_id_0> He <extra_id_99>",
    "a</s>b <unk>",
    "",
]


@pytest.mark.parametrize(("kind", "layout"), BOTH)
def test_ids_equal_those_of_the_family(learn, kind, layout):
    vocabulary = learn(kind, layout)
    tokens = vocabulary.token_ids
    ids = (tokens.pad, tokens.unk, tokens.cls, tokens.sep, tokens.eos, tokens.mask)
    if layout in IDS:
        assert ids == tuple(id + vocabulary.size if id is not None and id < 0 else id for id in IDS[layout])
    assert tokens.size == vocabulary.size == 1200
    assert vocabulary.pieces(tokens.sentinels) == [f"<extra_id_{n}>" for n in range(100 if layout == "t5" else 0)]
    assert tokens.sentinels[:2] == ((vocabulary.size - 1, vocabulary.size - 2) if layout == "t5" else ())
    assert set(vocabulary.pieces(tokens.special)) == set(LAYOUTS[layout].controls) and list(tokens.special) == sorted(
        tokens.special
    )
    before, after = FRAMES[layout]
    framed, bare = vocabulary.encode_prompt("the cat"), vocabulary.encode_prompt("the cat", frame=False)
    assert framed.pieces == [*before.split(), *bare.pieces, *after.split()]
    assert bare.ids.tolist() == vocabulary.encode_batch(["the cat"])[0].tolist()


@pytest.mark.parametrize(("kind", "layout"), BOTH)
def test_control_pieces_are_text_in_running_text_and_control_ids_in_prompts(learn, kind, layout):
    vocabulary = learn(kind, layout)
    tokens = vocabulary.token_ids
    controls = {*tokens.special, *tokens.sentinels} - ({tokens.unk} if tokens.unk != tokens.pad else set())
    texts = [f"x {piece} y{piece}z{piece}" for piece in vocabulary.pieces(sorted(controls))] + [
        " ".join(vocabulary.pieces(sorted(controls)))
    ]
    for text, ids in zip(texts, vocabulary.encode_batch(texts), strict=True):
        assert not controls & set(ids.tolist()), text
        assert vocabulary.encode(text).ids.tolist() == ids.tolist()
        assert vocabulary.decode(ids).replace(" ", "").lower() == text.replace(" ", "").lower() or tokens.unk in ids
    for id in sorted(controls):
        piece = vocabulary.pieces([id])[0]
        for text, count in ((piece, 1), (f"the {piece} cat", 1), (f"the {piece}{piece} cat", 2)):
            assert vocabulary.encode_prompt(text, frame=False).ids.tolist().count(id) == count, text


@pytest.mark.parametrize(("kind", "layout"), BOTH)
def test_words_start_where_the_pieces_of_the_library_do(learn, lines, kind, layout):
    vocabulary = learn(kind, layout)
    starts = vocabulary.token_ids.starts_word
    assert starts.dtype == bool and starts.shape == (vocabulary.size,)
    special = [*vocabulary.token_ids.special, *vocabulary.token_ids.sentinels]
    assert [id for id in special if not starts[id]] == ([vocabulary.token_ids.unk] if kind in ("unigram", "bpe") else [])
    # The first piece of an English word between spaces starts a word, and no other piece does except at punctuation (WordPiece).
    text = "The following statement executes a function"
    ids = vocabulary.encode_batch([vocabulary.joint + text])[0]
    assert starts[ids].sum() == 6
    for piece, id in zip(vocabulary.pieces(ids), ids.tolist(), strict=True):
        assert starts[id] == (not piece.startswith("##") if kind == "wordpiece" else piece[0] in "▁Ġ")
    words = vocabulary.encode_batch(["字文"])[0]
    if kind != "byte_bpe" and vocabulary.token_ids.unk not in words:
        assert starts[words].sum() >= 2


@pytest.mark.parametrize(("kind", "layout"), BOTH)
def test_transformers_encodes_like_the_saved_vocabulary(learn, lines, kind, layout, tmp_path):
    transformers = pytest.importorskip("transformers")
    vocabulary = learn(kind, layout)
    vocabulary.save(tmp_path, model_max_length=77)
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert auto.is_fast and len(auto) == vocabulary.size and auto.model_max_length == 77
    tokens = vocabulary.token_ids
    assert (auto.pad_token_id, auto.unk_token_id, auto.mask_token_id) == (tokens.pad, tokens.unk, tokens.mask)
    assert (auto.cls_token_id, auto.sep_token_id) == (tokens.cls, tokens.sep)
    assert auto.eos_token_id == (2 if layout == "xlnet" else tokens.eos)
    assert auto.padding_side == ("left" if layout == "xlnet" else "right")
    for text, ids, theirs in zip(
        lines, vocabulary.encode_batch(lines), auto(lines, add_special_tokens=False)["input_ids"], strict=True
    ):
        # transformers does not distinguish running text from prompts
        if "[MASK]" not in text:
            assert ids.tolist() == theirs, text
    for text in PROMPTS:
        assert auto(text)["input_ids"] == vocabulary.encode_prompt(text).ids.tolist(), text
    pair = auto("the", "cat")["input_ids"]
    one, two = (vocabulary.encode_prompt(text, frame=False).ids.tolist() for text in ("the", "cat"))
    assert [id for id in pair if id not in tokens.special] == one + two

    loaded = vocabularies.load(tmp_path)
    assert (
        type(loaded) is type(vocabulary) and loaded.layout == vocabulary.layout and loaded.fingerprint == vocabulary.fingerprint
    )
    assert np.array_equal(loaded.token_ids.starts_word, tokens.starts_word) and loaded.token_ids.special == tokens.special


FEW_LINES = ["the cat sat on the mat with a hat", "a dog and Über Äpfel", "日本 語 x"] * 3
SENTENCE_PIECE_OPTIONS = [
    {"normalizer": "identity", "keep_spaces": True, "byte_fallback": True},
    {"normalizer": "nmt_nfkc_cf", "keep_spaces": False, "byte_fallback": False},
]
OPTIONS = {
    "wordpiece": [
        {"cased": cased, "strip_accents": strip, "split_ideographs": split}
        for cased in (True, False)
        for strip in (None, True, False)
        for split in (True, False)
    ],
    "unigram": SENTENCE_PIECE_OPTIONS,
    "bpe": SENTENCE_PIECE_OPTIONS,
    "byte_bpe": [{}],
}


@pytest.mark.parametrize("sentinels", [0, 150])
@pytest.mark.parametrize(("kind", "layout"), BOTH)
def test_loaded_vocabulary_has_every_option_that_was_saved(kind, layout, sentinels, tmp_path):
    for number, options in enumerate(OPTIONS[kind]):
        vocabulary = learn_few(kind, replace(LAYOUTS[layout], sentinels=sentinels), options)
        vocabulary.save(tmp_path / str(number))
        loaded = vocabularies.load(tmp_path / str(number))
        assert loaded.token_ids.sentinels == vocabulary.token_ids.sentinels and len(loaded.token_ids.sentinels) == sentinels
        assert loaded.size == vocabulary.size and loaded.fingerprint == vocabulary.fingerprint
        assert loaded.layout == vocabulary.layout
        loaded.save(tmp_path / "again")
        for path in (tmp_path / str(number)).iterdir():
            assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


def learn_few(kind, layout, options):
    learner = make_learner(kind, size=640, layout=layout, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return learner.learn(learner.count(FEW_LINES))


@pytest.mark.parametrize(
    ("kind", "layout"), [("wordpiece", "bert"), ("unigram", "t5"), ("byte_bpe", "roberta"), ("byte_bpe", "gpt2")]
)
@pytest.mark.parametrize("has_start", [True, False])
def test_folder_for_models_that_continue_a_text(learn, lines, kind, layout, has_start, tmp_path):
    transformers = pytest.importorskip("transformers")
    vocabulary = learn(kind, layout)
    end = vocabulary.token_ids.sep if vocabulary.token_ids.eos is None else vocabulary.token_ids.eos
    before = [end] if has_start else []
    vocabulary.save(tmp_path, before=vocabulary.pieces(before))
    (tmp_path / "config.json").write_text(f'{{"model_type": "{"opt" if has_start else "gpt2"}"}}')
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in [*lines[:20], ""]:
        assert auto(text)["input_ids"] == [*before, *vocabulary.encode_prompt(text, frame=False).ids], text
    loaded = vocabularies.load(tmp_path)
    assert loaded.layout == vocabulary.layout and loaded.fingerprint == vocabulary.fingerprint


def test_config_of_the_family_in_the_folder_changes_nothing(learn, lines, tmp_path):
    transformers = pytest.importorskip("transformers")
    families = {
        "t5": ("unigram", "t5"),
        "xlnet": ("unigram", "xlnet"),
        "albert": ("bpe", "albert"),
        "roberta": ("byte_bpe", "roberta"),
    }
    for family, (kind, layout) in families.items():
        vocabulary = learn(kind, layout)
        vocabulary.save(tmp_path / family)
        (tmp_path / family / "config.json").write_text(f'{{"model_type": "{family}"}}')
        auto = transformers.AutoTokenizer.from_pretrained(tmp_path / family)
        assert auto(lines[:200])["input_ids"] == [vocabulary.encode_prompt(line).ids.tolist() for line in lines[:200]]


@pytest.mark.parametrize("kind", KINDS)
def test_order_of_the_texts_does_not_matter(lines, kind):
    fingerprints = set()
    for texts in (lines[:300], lines[:300][::-1]):
        layout = {"wordpiece": "bert", "byte_bpe": "roberta"}.get(kind, "albert")
        learner = make_learner(kind, size=400, layout=LAYOUTS[layout])
        fingerprints.add(learner.learn(learner.count(texts)).fingerprint)
    assert len(fingerprints) == 1
