"""Rows of a new vocabulary that start from rows of an old one, compared with the rules of each kind and hand-made tables."""

import numpy as np
import pytest

from bertfam.data.vocabularies.byte_bpe import ByteBpe
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.data.vocabularies.matching import match
from bertfam.data.vocabularies.sentence_piece.vocabulary import SentencePiece
from bertfam.data.vocabularies.wordpiece import WordPiece

BERT, ROBERTA = LAYOUTS["bert"], LAYOUTS["roberta"]


def origins(new, old):
    """Return the old pieces whose mean each new piece starts from, by new piece, and the new pieces that keep their row."""
    matches = match(new, old)
    rows = np.split(matches.rows, np.cumsum(matches.counts)[:-1])
    pieces = new.pieces(matches.pieces)
    assert np.all(np.diff(matches.pieces) > 0) and matches.size == new.size
    kept = {piece for piece, is_kept in zip(pieces, matches.kept, strict=True) if is_kept}
    return {piece: old.pieces(ids) for piece, ids in zip(pieces, rows, strict=True)}, kept


def test_new_wordpieces_start_from_their_old_pieces():
    """Spell a continuation by continuations, with capitals and accents as the old vocabulary normalises them."""
    old = WordPiece([*BERT.controls, "con", "##tract", "##tor", "##or", "##s", "law", "s", "l", "##l", "a", "#"])
    new = WordPiece(
        [
            *BERT.controls,
            "law",
            "contract",
            "contractors",
            "contraction",
            "##tors",
            "##stors",
            "Láw",
            "##LS",
            "##a",
            "中",
            "#",
            "##",
        ],
        lowercase=False,
    )
    old_pieces, kept = origins(new, old)
    assert kept == {*BERT.controls, "law", "#"}
    assert all(old_pieces[piece] == [piece] for piece in kept)
    assert {piece: pieces for piece, pieces in old_pieces.items() if piece not in kept} == {
        "contract": ["con", "##tract"],
        "contractors": ["con", "##tract", "##or", "##s"],
        "##tors": ["##tor", "##s"],
        "##stors": ["##s", "##tor", "##s"],
        "Láw": ["law"],
        "##LS": ["##l", "##s"],
        "##a": ["a"],  # no continuation matches
    }
    assert origins(old, old)[1] == set(old.pieces(range(old.size)))


def test_control_tokens_match_by_their_role():
    words = ["law", "con", "##s"]
    bert = WordPiece([*BERT.controls, *words])
    roberta = WordPiece([*ROBERTA.first, *words, *ROBERTA.last], layout=ROBERTA)
    old_pieces, kept = origins(roberta, bert)
    assert kept == set(old_pieces) and old_pieces == {piece: [piece] for piece in words} | {
        "<s>": ["[CLS]"], "</s>": ["[SEP]"], "<mask>": ["[MASK]"], "<pad>": ["[PAD]"], "<unk>": ["[UNK]"],
    }  # fmt: skip
    assert origins(bert, roberta)[0] == {pieces[0]: [piece] for piece, pieces in old_pieces.items()}


def test_new_byte_bpe_pieces_start_from_their_old_pieces():
    """Match pieces inside a word, which have no space and may be a part of a character."""
    texts = ["the law of the contract is the contract of the law", "thé thé thé", "ein Vertrag, zwei Verträge"]
    old = ByteBpe.train(texts[:1], size=280)
    new = ByteBpe.train([*texts, " Vertragslaw thelaw"], size=330, min_frequency=1)
    old_pieces, kept = origins(new, old)
    assert kept == {piece for piece in new.pieces(range(new.size)) if piece in old.pieces(range(old.size))}
    assert set(old_pieces) == set(new.pieces(range(new.size)))
    merged = {piece: pieces for piece, pieces in old_pieces.items() if piece not in kept}
    assert len(merged) > 20 and all("".join(pieces) == piece and len(pieces) > 1 for piece, pieces in merged.items())
    assert any(piece.startswith("Ġ") for piece in merged) and any(not piece.startswith("Ġ") for piece in merged)
    # The old vocabulary encodes a word of running text as the same pieces.
    words = [piece for piece in merged if piece.startswith("Ġ") and piece[1:].isalpha() and piece[1:].isascii()]
    assert len(words) > 5
    for piece in words:
        assert old.pieces(old.encode_batch([" " + piece[1:]])[0]) == merged[piece]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_new_sentencepieces_start_from_their_old_pieces(kind):
    """Match a piece with ▁ at the start of a word and one without inside a word; byte pieces match no text."""
    old = SentencePiece.train(["the law of the contract is the law of the land"] * 3, kind=kind, size=36)
    new = SentencePiece.train(
        ["the lawful contractor of the landlaw contracts landlaw lands ж"] * 3, kind=kind, size=340, byte_fallback=True
    )
    old_pieces, kept = origins(new, old)
    names, theirs = new.pieces(range(new.size)), set(old.pieces(range(old.size)))
    assert kept == {piece for piece in names if piece in theirs}
    merged = {piece: pieces for piece, pieces in old_pieces.items() if piece not in kept}
    assert len(merged) >= 3
    known = {piece for piece in theirs if len(piece) == 1}
    for piece, pieces in merged.items():
        assert "".join(pieces) == "".join(character for character in piece if character in known)
    assert any(piece.startswith("▁") for piece in merged) and any(not piece.startswith("▁") for piece in merged)
    absent = set(names) - set(old_pieces)
    assert "<0x41>" in absent and all(piece[:3] == "<0x" or not known & set(piece) for piece in absent)


def test_means_of_old_rows():
    old = WordPiece([*BERT.controls, "con", "##tract", "##s", "law"])
    new = WordPiece([*BERT.controls, "contracts", "law", "中", "##tracts"])
    matches = match(new, old)
    table = np.arange(16 * 3, dtype=np.float32).reshape(16, 3) ** 2  # padded to 16 rows
    expected = [*table[:5], (table[5] + table[6] + table[7]) / 3, table[8], (table[6] + table[7]) / 2]
    assert matches.pieces.tolist() == [0, 1, 2, 3, 4, 5, 6, 8] and matches.kept.tolist() == [True] * 5 + [False, True, False]
    assert np.allclose(matches.means(table, 0), expected, rtol=1e-7, atol=0)
    assert np.allclose(matches.means(table.T, 1), np.transpose(expected), rtol=1e-7, atol=0)
    assert matches.means(table[:, 0], 0).shape == (8,) and matches.means(table, 0).dtype == np.float32
    assert matches.of_known.pieces.tolist() == [0, 1, 2, 3, 4, 6]
    assert np.array_equal(matches.of_known.means(table, 0), table[[0, 1, 2, 3, 4, 8]])
    assert matches.describe() == "6 keep their rows, 2 begin with the mean of their old pieces' rows, 1 are new"
