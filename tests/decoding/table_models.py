"""Models whose next token depends on the last token and the length: rows of a table of logits."""

import jax.numpy as jnp
import numpy as np
import pytest

from bertfam.decoding.stepper import Prompts, Stepper, reorder_rows, repeat_rows

# The number of tables, used in turn; with one table, texts with the same pairs in another order would be equally likely.
LENGTHS = 24


def table(seed, size, scale=2.0, impossible=()):
    """Return logits float32[LENGTHS, size, size] after each token at each length; `impossible` tokens never follow."""
    logits = scale * np.random.default_rng(seed).standard_normal((LENGTHS, size, size)).astype(np.float32)
    logits[..., list(impossible)] = -np.inf
    return logits


def stepper(logits):
    """Return the model as a stepper; its state is the length and the sum of all tokens, so that mixed-up texts are detected."""

    def step(tokens, state):
        length, total = state
        length, total = length + 1, total + tokens
        return _shifted(jnp.asarray(logits)[length % LENGTHS, tokens], total), (length, total)

    def repeat(state, count):
        return tuple(repeat_rows(leaf, count) for leaf in state)

    def reorder(state, places):
        return tuple(reorder_rows(leaf, places) for leaf in state)

    return Stepper(step, repeat, reorder)


def prefill(logits, batch):
    """Return the logits after a batch of prompts, and the state."""
    place = jnp.arange(batch.tokens.shape[1])
    total = jnp.sum(jnp.where(place >= batch.first[:, None], batch.tokens, 0), axis=1)
    length = batch.tokens.shape[1] - batch.first
    return _shifted(jnp.asarray(logits)[length % LENGTHS, batch.tokens[:, -1]], total), (length, total)


def _shifted(logits, total):
    """Scale each row of logits float32[rows, size] by up to a tenth, by the sum of the row's tokens."""
    return logits * (1 + 0.1 * (total % 7)[:, None] / 7)


def make_prompts(rows, pad, length=None):
    """Return lists of ids as a batch, padded on the left."""
    length = length or max(map(len, rows))
    tokens = np.full((len(rows), length), pad, np.int32)
    for place, row in enumerate(rows):
        tokens[place, length - len(row) :] = row
    first = np.array([length - len(row) for row in rows], np.int32)
    return Prompts(jnp.asarray(tokens), jnp.asarray(first), jnp.ones(len(rows), bool))


def torch_model(logits, *, eos, pad):
    """Return the same model as a transformers model with `generate`."""
    torch = pytest.importorskip("torch")
    from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutput

    class TableConfig(PretrainedConfig):
        model_type = "table_of_tests"

    class TableModel(PreTrainedModel, GenerationMixin):
        config_class = TableConfig

        def __init__(self, config):
            super().__init__(config)
            self.table = torch.nn.Parameter(torch.tensor(logits))

        def forward(self, input_ids, attention_mask=None, **others):
            length = attention_mask.cumsum(-1)
            total = (attention_mask * input_ids).cumsum(-1)
            return CausalLMOutput(logits=self.table[length % LENGTHS, input_ids] * (1 + 0.1 * (total % 7)[..., None] / 7))

        def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **others):
            return {"input_ids": input_ids, "attention_mask": attention_mask}

    model = TableModel(TableConfig(vocab_size=logits.shape[-1])).eval()
    model.generation_config.update(eos_token_id=eos, pad_token_id=pad, use_cache=False)
    return model
