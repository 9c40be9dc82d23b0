"""RetroMAE's objective: the loss against NumPy in float64, and the words that queries of the decoder see."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny
from gradients import assert_sums_of_microbatches, random_params
from scipy.special import erf
from test_mlm_nsp import numpy_cross_entropy

from bertfam.corruption import keys
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.masked_lm.selection import WholeWords
from bertfam.data.rows.running_text import DocSentences
from bertfam.errors import UserError
from bertfam.features import RowShape
from bertfam.interop import huggingface
from bertfam.layers.sampling import keys_of_rows
from bertfam.models.albert import AlbertConfig
from bertfam.models.encoder import word_table
from bertfam.objectives.mlm import Mlm
from bertfam.objectives.retrieval.retromae import RetroMae, SampledWords

OBJECTIVE = RetroMae(tiny.objective().model, chunk=5)
LENGTH = tiny.SHAPE.length


def batch_of(rows=6, seed=0, counts=None):
    """Return rows of words of one to three tokens, between two control tokens."""
    generator = np.random.default_rng(seed)
    batch = tiny.batch(rows, seed=seed, predictions=counts)
    batch = {name: batch[name] for name in Mlm(OBJECTIVE.model).features(tiny.SHAPE)}
    numbers = np.cumsum(generator.random((rows, LENGTH)) < 0.6, axis=1)
    sizes = batch["encoder_segment_ids"].sum(axis=1, keepdims=True)
    place = np.arange(LENGTH)
    batch["encoder_word_numbers"] = np.where((place > 0) & (place < sizes - 1), numbers, -1).astype(np.int32)
    return batch


@pytest.fixture(scope="module")
def params():
    return random_params(OBJECTIVE)


@jax.jit
def compiled_loss(params, batch):
    hidden = OBJECTIVE.encoded(params, batch, key=None, train=False)
    return OBJECTIVE.loss(params, {}, {}, batch, key=None, train=False), hidden


def layer_norm(x, module):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-12) * module["scale"] + module["bias"]


def dense(x, module):
    return np.tensordot(x, module["kernel"], axes=module["kernel"].ndim - module["bias"].ndim) + module["bias"]


def gelu(x):
    return x * 0.5 * (1 + erf(x / np.sqrt(2)))


def numpy_decoder(params, text, tokens, types, visible):
    """Decode one row (section 3.3): H1 = h + p, H2 = h, e + p; softmax(Q K / sqrt(d) + M) V; two sublayers with norms."""
    tables, layer = params["encoder"]["embeddings"], params["enhanced_decoder"]
    positions = tables["position"]["table"][: len(tokens)]
    words = tables["word"]["table"][tokens] + positions + tables["token_type"]["table"][types]
    context = layer_norm(words, tables["norm"])
    context[0] = text
    queries = text + positions
    # [length, heads, head_dim]
    query, key, value = (
        dense(stream, layer["attention"][name]) for stream, name in ((queries, "query"), (context, "key"), (context, "value"))
    )
    scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(query.shape[-1])
    weights = np.exp(np.where(visible, scores, -np.inf))
    mixed = np.einsum("hqk,khd->qhd", weights / weights.sum(axis=-1, keepdims=True), value)
    output = layer["attention"]["output"]
    attended = np.einsum("qhd,hde->qe", mixed, output["kernel"]) + output["bias"]
    hidden = layer_norm(queries + attended, layer["attention_norm"])
    inner = gelu(dense(hidden, layer["feed_forward"]["intermediate"]))
    hidden = layer_norm(hidden + dense(inner, layer["feed_forward"]["output"]), layer["feed_forward_norm"])
    head = params["mlm_head"]
    hidden = layer_norm(gelu(dense(hidden, head["dense"])), head["norm"])
    return (hidden @ tables["word"]["table"].T + head["bias"])[:, : tiny.VOCABULARY]


def visible_places(batch):
    """Return what each query sees: bool[rows, length, length]."""
    names = ("encoder_input_tokens", "masked_target_tokens", "masked_positions")
    row_keys = jax.random.key_data(keys_of_rows(*(np.asarray(batch[name]) for name in names)))
    arrays = {"words": np.asarray(batch["encoder_word_numbers"]), "keys": row_keys}
    place = np.arange(batch["encoder_word_numbers"].shape[1])
    return np.asarray(SampledWords(OBJECTIVE.decoder_masked).mask(place[:, None], place[None], arrays))[:, 0]


def test_loss_matches_numpy(params):
    """Rows of padding, which the last two are, add nothing."""
    batch = tiny.padded(batch_of(), 2)
    assert batch.keys() == OBJECTIVE.features(tiny.SHAPE).keys()
    out, hidden = compiled_loss(params, batch)
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    text, seen = np.asarray(hidden, np.float64)[:, 0], visible_places(batch)
    tokens = batch["encoder_input_tokens"].copy()
    for row, slot in zip(*np.nonzero(batch["masked_loss_weights"]), strict=True):
        tokens[row, batch["masked_positions"][row, slot]] = batch["masked_target_tokens"][row, slot]
    logits = np.zeros((*tokens.shape, tiny.VOCABULARY))
    for row in range(6):
        size = batch["encoder_segment_ids"][row].sum()
        types = batch["encoder_token_type_ids"][row, :size]
        logits[row, :size] = numpy_decoder(wide, text[row], tokens[row, :size], types, seen[row, :size, :size])
    weights = np.float64(batch["encoder_word_numbers"] >= 0) * (batch["encoder_segment_ids"] > 0)
    loss, hits, count = numpy_cross_entropy(logits, tokens, weights)
    assert float(OBJECTIVE.denominators(batch)["decoder"]) == count == weights[:6].sum() > 40
    np.testing.assert_allclose(out.terms["decoder"], loss, rtol=1e-5)
    assert tuple(out.metrics["decoder_accuracy"]) == (hits, count)
    alone = jax.jit(lambda: Mlm(OBJECTIVE.model).loss(params, {}, {}, batch, key=None, train=False))()
    np.testing.assert_allclose(out.terms["mlm"], alone.terms["mlm"], rtol=1e-5)


def test_sums_of_microbatches_are_those_of_the_batch(params):
    batch = batch_of(8, counts=[4, 0, 1, 0, 4, 0, 3, 0])
    assert_sums_of_microbatches(lambda rows: jax.device_get(compiled_loss(params, rows)[0]), batch)


def test_words_that_queries_see():
    """Half of the words, all tokens of each or none, other words for each query; never itself, and all control tokens."""
    length, count = 128, 64
    words = np.repeat(np.arange(length // 2), 2)[None].repeat(count, axis=0)
    words[:, [0, -1]] = -1
    arrays = {"words": words, "keys": np.random.default_rng(0).integers(0, 2**32, (count, 2)).astype(np.uint32)}
    place = np.arange(length)
    for masked in (0.5, 0.7):
        seen = np.asarray(SampledWords(masked).mask(place[:, None], place[None], arrays))[:, 0]
        assert not seen[:, place, place].any() and seen[:, 1:, 0].all() and seen[:, :-1, -1].all()
        # Words 1, ..., 62 have places 2 w and 2 w + 1.
        first, second = seen[:, :, 2:-2:2], seen[:, :, 3:-1:2]
        other = (place[:, None] // 2 != np.arange(1, length // 2 - 1)) & np.ones((count, 1, 1), bool)
        assert (first == second)[other].all()
        # 504,000 draws: the deviation is 0.0007.
        assert first[other].mean() == pytest.approx(1 - masked, abs=0.004)
        drawn = np.where(other, first, np.nan)
        by_query, by_word = np.nanmean(drawn, axis=(0, 2)), np.nanmean(drawn, axis=(0, 1))
        assert np.abs(by_query - (1 - masked)).max() < 0.04 and np.abs(by_word - (1 - masked)).max() < 0.03
        # Two queries agree as often as independent draws do, and so do two rows.
        agreement = masked**2 + (1 - masked) ** 2
        assert (first[:, 1:] == first[:, :-1]).mean() == pytest.approx(agreement, abs=0.02)
        assert (first[1:] == first[:-1]).mean() == pytest.approx(agreement, abs=0.02)


def test_numbers_of_words(cache, vocabulary):
    """Masked words are whole, at the rate of the encoder's noise, and the words' numbers are those of the text."""
    tokens, noise = vocabulary.token_ids, BertMasking(rate=0.3, choice=WholeWords(), word_numbers=True)
    examples = DocSentences().examples(cache.documents("train", "text"), 64, 0, tokens)
    indices = np.arange(min(200, len(examples)))
    rows = examples.rows(indices, keys.fold(0, indices))
    corrupted = noise.corrupt(rows, keys.fold(1, indices), tokens)
    assert corrupted.keys() == noise.features(RowShape(64, noise.predictions(64))).keys()
    original, numbers = rows["encoder_input_tokens"], corrupted["encoder_word_numbers"]
    real = rows["encoder_segment_ids"] > 0
    assert ((numbers < 0) == (~real | np.isin(original, [tokens.cls, tokens.sep]))).all()
    continues = (numbers[:, 1:] == numbers[:, :-1]) & (numbers[:, 1:] >= 0)
    begins = tokens.starts_word[original[:, 1:]]
    assert (continues == (~begins & (numbers[:, 1:] >= 0) & (numbers[:, :-1] >= 0))).all() and continues.sum() > 500
    used = corrupted["masked_loss_weights"] > 0
    chosen = np.zeros(original.shape, bool)
    chosen[np.nonzero(used)[0], corrupted["masked_positions"][used]] = True
    maskable = rows["maskable"][:, 1:] & rows["maskable"][:, :-1]
    assert (chosen[:, 1:] == chosen[:, :-1])[continues & maskable].all()
    assert chosen.sum() / real.sum() == pytest.approx(0.3, abs=0.02)


def test_export_has_no_decoder(params):
    written = huggingface.writable(OBJECTIVE.model, OBJECTIVE.split(params)["encoder"])
    assert written.keys() == {"encoder", "mlm_head"} < params.keys() and OBJECTIVE.pooling == "cls"
    assert word_table(written) is word_table(params)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decoder": -1.0}, "decoder -1.0 is no coefficient"),
        ({"decoder_masked": 1.5}, "decoder_masked 1.5"),
        ({"chunk": 0}, "chunk 0"),
        ({"model": AlbertConfig()}, "not this AlbertConfig"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises((ValueError, UserError), match=message):
        dataclasses.replace(OBJECTIVE, **settings)


def test_packed_rows_are_refused():
    with pytest.raises(UserError, match="packed"):
        OBJECTIVE.features(RowShape(16, 4, examples=2))
