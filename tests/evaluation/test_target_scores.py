"""Log-likelihoods log p(targets | inputs), compared with whole logits of one pair at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bertfam import api
from bertfam.decoding.end_tokens import end_tokens
from bertfam.errors import UserError
from bertfam.evaluation.target_scores import log_likelihoods, score_targets
from bertfam.models.gpt2 import Gpt2Config
from bertfam.models.language_model import init_language_model
from bertfam.models.t5 import T5Config

CONFIGS = {
    "encoder-decoder": T5Config(vocab_size=60, num_layers=1, hidden_size=16, num_heads=2, head_dim=8, feed_forward_size=32),
    "decoder": Gpt2Config(vocab_size=60, num_layers=1, hidden_size=16, num_heads=2, max_length=16),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_log_likelihoods_equal_those_of_whole_logits(kind, vocabulary):
    config = CONFIGS[kind]
    generator = np.random.default_rng(0)
    shapes = nn.meta.unbox(jax.eval_shape(lambda key: init_language_model(config, key), jax.random.key(0)))
    params = jax.tree.map(lambda leaf: jnp.asarray(0.3 * generator.standard_normal(leaf.shape), jnp.float32), shapes)
    model = api.LanguageModel(config, params, vocabulary, end_tokens(config, vocabulary.token_ids))
    sizes = [(5, 4), (5, 4), (0, 4), (5, 4), (5, 1)]
    inputs, targets = ([generator.integers(0, 60, pair[side]) for pair in sizes] for side in (0, 1))
    scores = log_likelihoods(model, inputs, targets, batch_size=2)
    but_first, likeliest = (score_targets(model, inputs, targets, forced=count, batch_size=2) for count in (1, 0))
    assert likeliest.log_likelihoods.tolist() == scores.tolist()
    for number, (input_ids, target_ids) in enumerate(zip(inputs, targets, strict=True)):
        if number == 4 or (config.kind == "encoder_decoder" and not len(input_ids)):
            continue  # the one needs another compilation, the other has no inputs
        if config.kind == "encoder_decoder":
            row, first = [model.ends.start, *target_ids[:-1]], 0
            logits = model.apply(np.array([row]), encoder_tokens=input_ids[None])["logits"][0]
        else:
            row, first = [*(input_ids if len(input_ids) else [model.ends.start]), *target_ids[:-1]], max(len(input_ids) - 1, 0)
            logits = model.apply(np.array([row]))["logits"][0]
        logs = jax.nn.log_softmax(logits[first : first + len(target_ids)])
        own = logs[np.arange(len(target_ids)), target_ids]
        assert scores[number] == pytest.approx(float(own.sum()), rel=1e-4)
        assert but_first.log_likelihoods[number] == pytest.approx(float(own[1:].sum()), rel=1e-4)
        assert likeliest.greedy[number] == bool((logs.argmax(axis=1) == target_ids).all())
    best = np.asarray(logs.argmax(axis=1))[:1]  # of the last pair's first target
    assert score_targets(model, [inputs[number - 1]] * 2, [best, (best + 1) % 60], batch_size=2).greedy.tolist() == [True, False]
    reversed_scores = log_likelihoods(model, inputs[::-1], targets[::-1], batch_size=2)
    assert reversed_scores[::-1] == pytest.approx(scores, rel=1e-5)  # scores do not depend on the other pairs
    if config.max_length:
        with pytest.raises(UserError, match="a text has 20 tokens and the model reads at most 16"):
            log_likelihoods(model, [np.arange(18)], [np.arange(3)])
