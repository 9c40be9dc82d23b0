"""Adapter to lm-evaluation-harness: its log-likelihoods and texts are those of the model; skipped where it is not installed."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bertfam import api
from bertfam.decoding.end_tokens import end_tokens
from bertfam.decoding.strategies import Limits
from bertfam.models.gpt2 import Gpt2Config
from bertfam.models.language_model import init_language_model
from bertfam.models.t5 import T5Config

pytest.importorskip("lm_eval")
lm_eval = pytest.importorskip("bertfam.evaluation.lm_eval")

CONTEXT, TARGET = "The value", " is a string."


def by_hand(model, context, target, encoder_tokens=None):
    """Return log p(target | context) from the logits, and whether all targets are the likeliest tokens."""
    tokens = np.array([*context, *target[:-1]], np.int32)[None]
    extra = {} if encoder_tokens is None else {"encoder_tokens": np.array(encoder_tokens, np.int32)[None]}
    logits = model.apply(tokens, **extra)["logits"][0, len(context) - 1 :]
    scores = np.asarray(jax.nn.log_softmax(logits), np.float64)
    return scores[np.arange(len(target)), target].sum(), bool((scores.argmax(-1) == target).all())


def random_model(vocabulary, config):
    """Return a model with random parameters."""
    generator = np.random.default_rng(0)
    shapes = nn.meta.unbox(jax.eval_shape(lambda key: init_language_model(config, key), jax.random.key(0)))
    params = jax.tree.map(lambda leaf: jnp.asarray(0.3 * generator.standard_normal(leaf.shape), jnp.float32), shapes)
    return api.LanguageModel(config, params, vocabulary, end_tokens(config, vocabulary.token_ids))


@pytest.fixture
def decoder(vocabulary):
    """Return a random GPT-2."""
    sizes = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "max_length": 16}
    return random_model(vocabulary, Gpt2Config(vocab_size=vocabulary.size, **sizes))


@pytest.fixture
def harness(decoder, monkeypatch):
    """Return the adapter of the model."""
    monkeypatch.setattr(lm_eval, "load", lambda folder, step=None: decoder)
    return lm_eval.BertfamLM("here", batch_size="4")


def request(*args):
    return SimpleNamespace(args=args)


def test_log_likelihoods_are_those_of_the_model(harness, decoder):
    encode, start = decoder.vocabulary.encode_batch, decoder.ends.start
    ((score, greedy), (empty, _)) = harness.loglikelihood([request(CONTEXT, TARGET), request("", CONTEXT)])
    (whole,), (context,) = encode([CONTEXT + TARGET]), encode([CONTEXT])
    expected, is_greedy = by_hand(decoder, list(context), list(whole)[len(context) :])
    assert score == pytest.approx(expected, abs=1e-4) and greedy == is_greedy
    assert empty == pytest.approx(by_hand(decoder, [start], list(context))[0], abs=1e-4)
    text = " ".join([CONTEXT + TARGET] * 12)
    (tokens,) = encode([text])
    length = decoder.config.max_length
    assert len(tokens) > length
    # The first window follows the start, and others as many tokens as there is room for.
    total = by_hand(decoder, [start], list(tokens[:length]))[0]
    for begin in range(length, len(tokens), length):
        end = min(begin + length, len(tokens))
        target = list(tokens[begin:end])
        context = list(tokens[end - length - 1 : begin]) if len(target) < length else [tokens[begin - 1]]
        total += by_hand(decoder, context, target)[0]
    assert harness.loglikelihood_rolling([request(text)])[0] == pytest.approx(total, abs=1e-3)


def test_an_encoder_decoder_reads_the_context(vocabulary, monkeypatch):
    sizes = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "head_dim": 8, "feed_forward_size": 32}
    model = random_model(vocabulary, T5Config(vocab_size=vocabulary.size, **sizes))
    monkeypatch.setattr(lm_eval, "load", lambda folder, step=None: model)
    adapter = lm_eval.BertfamLM("here")
    ((score, _),) = adapter.loglikelihood([request(CONTEXT, TARGET)])
    (target,) = vocabulary.encode_batch([TARGET])
    source = vocabulary.encode_prompt(CONTEXT, frame=True).ids
    assert score == pytest.approx(by_hand(model, [model.ends.start], list(target), source)[0], abs=1e-4)
    assert isinstance(adapter.generate_until([request(CONTEXT, {"max_gen_toks": 4})])[0], str)


def test_texts_end_before_a_stop_text(harness, decoder):
    (whole,) = harness.generate_until([request(CONTEXT, {"max_gen_toks": 6})])
    ((text,),) = decoder.generate([CONTEXT], limits=Limits(max_new_tokens=6))
    assert text.text == CONTEXT + whole and whole
    stop = whole[2:4]
    (cut,) = harness.generate_until([request(CONTEXT, {"max_gen_toks": 6, "until": [stop]})])
    assert cut == whole[: whole.index(stop)]
