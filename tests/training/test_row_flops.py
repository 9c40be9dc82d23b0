"""FLOPs of packed rows: attention within each example, from the plan of the rows."""

import numpy as np
import pytest
from numbered_documents import FIRST, IDS, random_documents

from bertfam.corruption import keys
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.next_tokens import NextTokens
from bertfam.data.rows.batches import CorruptedRows
from bertfam.data.rows.mixture import MixedRows
from bertfam.data.rows.order import Shuffled
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.running_text import WholeDocuments
from bertfam.data.rows.text_pairs import PairFrame, TextPairs
from bertfam.data.token_cache.documents import Documents
from bertfam.features import RowShape
from bertfam.models.bert import BertConfig
from bertfam.models.electra import ElectraConfig
from bertfam.models.gpt2 import Gpt2Config
from bertfam.models.modernbert import ModernBertConfig
from bertfam.models.t5 import T5Config
from bertfam.objectives.causal_lm import CausalLm
from bertfam.objectives.electra import Electra
from bertfam.objectives.mlm import Mlm
from bertfam.objectives.sequence_to_sequence import SequenceToSequence
from bertfam.training.logs.row_flops import row_flops

LENGTH, TARGETS = 64, 48
SIZES = {"vocab_size": 99, "num_layers": 2, "hidden_size": 16, "num_heads": 2, "feed_forward_size": 32}
BERT = BertConfig(**SIZES)
ENCODERS = {
    "bert": Mlm(BERT),
    "modernbert": Mlm(ModernBertConfig(**SIZES, window=6)),
    "electra": Electra(ElectraConfig(**SIZES), generator_width=0.5),
}
SHAPE = RowShape(LENGTH, predictions=10, examples=4)


def rows_of(layout, documents, corruption):
    examples = layout.examples(documents, LENGTH, 1, IDS, corruption.form)
    return CorruptedRows(Shuffled(len(examples), 1), examples, corruption, IDS, 1)


def packed_rows(seed=0, corruption=BertMasking()):  # noqa: B008
    return rows_of(Packed(), random_documents(seed, 200, most_sentences=2), corruption)


def pairs_of(pattern, segments):
    """Count the pairs of tokens of one row that see each other; a place of padding sees itself."""
    places = np.arange(LENGTH)
    same = (segments[:, None] == segments) & (segments > 0)
    seen = pattern.mask(places[:, None], places) & same
    return seen.sum() + np.count_nonzero(segments == 0)


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_pairs_of_packed_rows_are_those_within_examples(name):
    """The rest of the FLOPs is that of the whole row."""
    objective, rows = ENCODERS[name], packed_rows()
    model = objective.model
    layers = [model.pattern_of(kind) for kind in model.types] if name == "modernbert" else [model.patterns[0]] * 2
    numbers = np.arange(len(rows.examples))
    segments = rows.examples.rows(numbers, keys.fold(0, 0, numbers))["encoder_segment_ids"]
    assert segments.max() > 2
    found = np.mean([sum(pairs_of(layer, row) for layer in layers) for row in segments])
    whole = sum(layer.pairs(LENGTH) for layer in layers)
    expected = objective.flops(SHAPE) + 3 * 4 * model.hidden_size * (found - whole)
    assert row_flops(objective, SHAPE, rows) == pytest.approx(expected, abs=1) and found < 0.7 * whole


def test_all_networks_of_an_objective_count():
    objective, rows = ENCODERS["electra"], packed_rows()
    widths = sum(network.hidden_size for network in objective.networks.values())
    sizes, counts = rows.examples.example_sizes[:, 0], len(rows.examples)
    pairs = (sum(sizes**2) + counts * LENGTH - sum(sizes)) / counts
    expected = objective.flops(SHAPE) + 2 * 3 * 4 * widths * (pairs - LENGTH**2)
    assert row_flops(objective, SHAPE, rows) == pytest.approx(expected, abs=1)


def test_causal_rows():
    objective, rows = CausalLm(Gpt2Config(**SIZES)), packed_rows(corruption=NextTokens())
    shape = RowShape(LENGTH, 0, 4, LENGTH)
    sizes, counts = rows.examples.example_sizes[:, 1], len(rows.examples)
    pairs = (sum(sizes**2) + counts * LENGTH - sum(sizes)) / counts
    expected = objective.flops(shape) + 2 * 3 * 2 * 16 * (pairs - LENGTH**2)
    assert row_flops(objective, shape, rows) == pytest.approx(expected, abs=1)


@pytest.mark.parametrize("packed", [True, False])
def test_pairs_of_inputs_and_targets(packed):
    lengths = np.random.default_rng(0).integers(1, 20, 2 * 150)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    documents = Documents("pairs", FIRST + np.arange(starts[-1]), starts, np.arange(0, 301, 2), pairs=True)
    examples = TextPairs(packed=packed).examples(documents, (LENGTH, TARGETS), 0, PairFrame(IDS_WITH_END, "pad"))
    rows = CorruptedRows(Shuffled(len(examples), 1), examples, BertMasking(), IDS, 1)
    model = T5Config(**SIZES, head_dim=8)
    objective, shape = SequenceToSequence(model), RowShape(LENGTH, 0, 4, TARGETS)
    inputs, targets = (lengths.reshape(-1, 2) + 1).T
    empty = len(examples) * np.array([LENGTH, TARGETS]) - np.array([inputs.sum(), targets.sum()])
    # Three forward passes' worth, two layers each, heads 16 wide in all.
    saved = 4 * (LENGTH**2 - (sum(inputs**2) + empty[0]) / len(examples))
    saved += 2 * (TARGETS**2 - (sum(targets**2) + empty[1]) / len(examples))
    saved += 4 * (LENGTH * TARGETS - sum(inputs * targets) / len(examples))
    expected = objective.flops(shape) - 3 * 2 * 16 * saved * packed
    assert row_flops(objective, shape, rows) == pytest.approx(expected, abs=1)


IDS_WITH_END = IDS.__class__(size=1_000_000, pad=0, unk=1, eos=5, special=(0, 1, 5))


def test_rows_of_one_example_and_mixtures():
    objective, packed = ENCODERS["bert"], packed_rows()
    single = rows_of(WholeDocuments(), random_documents(1, 50), BertMasking())
    whole, inside = (row_flops(objective, SHAPE, rows) for rows in (single, packed))
    assert whole == objective.flops(SHAPE) > inside
    mixed = row_flops(objective, SHAPE, MixedRows((single, packed), (0.25, 0.75)))
    assert mixed == pytest.approx(0.25 * whole + 0.75 * inside, abs=1)
