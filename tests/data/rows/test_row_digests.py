"""Digests of rows, recorded before rows were made faster: what a run reads never changes."""

import hashlib

import numpy as np
import pytest

from bertfam.corruption.keys import bits, coin_sums, fold, integers
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.masked_lm.selection import RareTokens, WholeWords, WithReplacement
from bertfam.corruption.masked_lm.shuffled_windows import ShuffledWindows
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.batches import Batches, CorruptedRows
from bertfam.data.rows.earlier_rows import earlier_rows
from bertfam.data.rows.order import Contiguous, Shuffled, permute
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.data.rows.two_segments import TwoSegments
from bertfam.data.token_cache.documents import Documents

SIZE = 5000
IDS = TokenIds(SIZE, pad=0, unk=1, cls=2, sep=3, mask=4, special=(0, 1, 2, 3, 4), starts_word=np.arange(SIZE) % 3 > 0)
NEXT, WORDS = SentencePairs(), BertMasking(choice=WholeWords())
STRUCTURE = SentencePairs(relation="structure")
# Layout, noise, length, dupe_factor, and True for text with marks.
SETTINGS = {
    "BERT": (NEXT, BertMasking(), 128, None, False),
    "BERT with marks": (NEXT, BertMasking(), 64, None, True),
    "BERT, published": (NEXT, BertMasking(max_predictions=10, random_tokens="vocabulary"), 128, 2, False),
    "BERT, whole words": (NEXT, WORDS, 128, None, False),
    "BERT, more predictions than text": (NEXT, BertMasking(rate=0.9, max_predictions=70, rounding="up"), 64, None, False),
    "BERT, rows of version 1": (earlier_rows(NEXT), BertMasking(), 128, None, False),
    "ALBERT": (SentencePairs(relation="order"), BertMasking(rounding="random"), 300, None, False),
    "StructBERT": (STRUCTURE, BertMasking(shuffling=ShuffledWindows()), 128, None, False),
    "pairs of sentences": (SentencePairs(unit="sentence"), BertMasking(), 128, None, False),
    "packed": (Packed(NEXT), BertMasking(), 256, None, False),
    "packed, rows of version 3": (earlier_rows(Packed(NEXT), 3), BertMasking(), 256, None, False),
    "ELECTRA": (TwoSegments(), BertMasking(choice=WithReplacement(), slot_margin=0.005), 128, None, False),
    "DistilBERT": (NEXT, BertMasking(choice=RareTokens(), random_tokens="text", mask_share=0.5, random_share=0.4), 64, 1, False),
    "without random tokens": (NEXT, BertMasking(mask_share=1.0, random_share=0.0), 5, None, False),
}
DIGESTS = {
    "BERT": "8f00cc23db09e609",
    "BERT with marks": "49d6c26f4e379384",
    "BERT, published": "df8508acd2a5e85e",
    "BERT, whole words": "c728f00100d233da",
    "BERT, more predictions than text": "846dc7ad5e381e6f",
    "BERT, rows of version 1": "419a24005341fa14",
    "ALBERT": "aba3c20b43186a15",
    "StructBERT": "6f843c62a2a0c25f",
    "pairs of sentences": "f3558987c80ce5ed",
    "packed": "0e1e1f552709969c",
    "packed, rows of version 3": "2cee3c556b2593f8",
    "ELECTRA": "1d5896ab15a238ab",
    "DistilBERT": "95d4ffcb072e5bc0",
    "without random tokens": "e9225aafed54b813",
    "evaluation": "412d38deb7ab4191",
    "coins": "b894919b0cae83b5",
}
PERMUTED = {
    65: "d9047e80b4d04086",
    1_000: "d2e4b21067a1c4d8",
    79_130: "d6d285444406b9c1",
    1_048_576: "cd4fdf7f73e6be23",
    10_000_000: "065adb22d9fec5c2",
    3_000_000_000: "114b6b27724cc0dd",
    2_199_023_255_557: "f3e90ae6050971b6",
}


def make_documents(units):
    """Return 150 documents with up to 30 sentences of up to 60 tokens, unknown ones among them."""
    sentences = 1 + integers(bits(fold(0, 1), 0, 150)[0], 30)
    lengths = 1 + integers(bits(fold(0, 2), 0, int(sentences.sum()))[0], 60)
    words = bits(fold(0, 3), 0, int(lengths.sum()))[0]
    tokens = np.where(words % 50 == 0, 1, 5 + integers(words, SIZE - 5)).astype(np.uint16)
    starts, bounds = (np.concatenate([[0], np.cumsum(counts)]) for counts in (lengths, sentences))
    return Documents("a text", tokens, starts, bounds, (words % 7).astype(np.uint8) if units else None)


def digest(rows):
    """Return the digest of features: their names, types, shapes and values."""
    content = hashlib.sha256()
    for name, value in sorted(rows.items()):
        content.update(f"{name} {value.dtype} {value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    return content.hexdigest()[:16]


def make_rows(layout, noise, length, dupe_factor, units, order=Shuffled):
    """Return the sequence of rows of a setting."""
    documents = make_documents(units)
    noise = noise.fit(lambda: documents.token_counts(SIZE))
    examples = layout.examples(documents, length, 7, IDS)
    arguments = (order(len(examples), 8),) if order is Shuffled else (order(len(examples)),)
    return CorruptedRows(*arguments, examples, noise, IDS, 9, dupe_factor)


@pytest.mark.parametrize("name", SETTINGS)
def test_rows_are_those_that_earlier_versions_made(name):
    assert digest(Batches(make_rows(*SETTINGS[name]), 1500).rows(0, 0, 1500)) == DIGESTS[name]


@pytest.mark.parametrize("name", ["BERT", "BERT, whole words", "StructBERT", "ELECTRA"])
def test_rows_do_not_depend_on_the_batch_or_where_it_begins(name):
    rows = make_rows(*SETTINGS[name])
    whole = Batches(rows, 700).rows(1, 0, 700)
    cuts = [0, 1, 3, 67, 323, 700]
    parts = [Batches(rows, 700).rows(1, start, stop) for start, stop in zip(cuts, cuts[1:], strict=False)]
    assert digest({key: np.concatenate([part[key] for part in parts]) for key in whole}) == digest(whole)


def test_rows_for_evaluation_are_those_that_earlier_versions_made():
    rows = Batches(make_rows(*SETTINGS["BERT"], order=Contiguous), 1500).rows(0, 0, 1500)
    assert digest(rows) == DIGESTS["evaluation"]


@pytest.mark.parametrize("size", [65, 1000, 79_130, 2**20, 10**7, 3 * 10**9, 2**41 + 5])
def test_permutations_are_those_of_earlier_versions(size):
    values = integers(bits(fold(3, 0), 0, 3000)[0], min(size, 2**32 - 1)) * max(1, size >> 32)
    keys = fold(4, np.arange(3000) // 1000)
    permuted = permute(values, size, keys)
    # A part has one key, the whole has three.
    parts = [permute(values[start : start + 1000], size, keys[start : start + 1000]) for start in (0, 1000, 2000)]
    assert digest({"permuted": permuted}) == PERMUTED[size] and np.array_equal(permuted, np.concatenate(parts))


def test_sums_of_coins_are_those_of_earlier_versions():
    tosses = np.concatenate([np.arange(-3, 300), np.array([5000, 63, 64, 65, 20_000])])
    sums = coin_sums(fold(5, np.arange(len(tosses))), 20, tosses)
    assert digest({"sums": sums}) == DIGESTS["coins"]
