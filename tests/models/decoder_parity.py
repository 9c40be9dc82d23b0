"""Helpers for tests of decoders: rows padded on either side, outputs of torch and JAX models, random parameters."""

import functools

import jax
import numpy as np
import parity
from flax import linen as nn

from bertfam.interop import huggingface
from bertfam.layers.execution import Execution
from bertfam.models.language_model import init_language_model, logits, word_embeddings

LENGTHS = (9, 1, 4, 0, 7)
LENGTH = 11


def batch(side="right", vocabulary=parity.VOCABULARY):
    """Return random tokens with ragged padding and one row of padding only; rows padded on the left have explicit positions."""
    generator = np.random.default_rng(0)
    places, lengths = np.arange(LENGTH), np.array(LENGTHS)[:, None]
    real = places < lengths if side == "right" else places >= LENGTH - lengths
    inputs = {
        "tokens": np.where(real, generator.integers(1, vocabulary, real.shape), 0).astype(np.int32),
        "segment_ids": real.astype(np.int32),
    }
    positions = np.maximum(np.cumsum(real, axis=1) - 1, 0).astype(np.int32)
    return inputs if side == "right" else inputs | {"positions": positions}


def torch_outputs(model, inputs, positions=True):
    """Return the torch model's hidden states but the last, the last one, attention weights and logits.

    The model gets the explicit positions of the inputs where `positions` is True.
    """
    import torch

    tensors = {name: torch.tensor(value, dtype=torch.long) for name, value in inputs.items()}
    position_ids = {"position_ids": tensors["positions"]} if positions and "positions" in tensors else {}
    with torch.no_grad():
        output = model(
            tensors["tokens"],
            attention_mask=tensors["segment_ids"],
            output_hidden_states=True,
            output_attentions=True,
            **position_ids,
        )
    *states, last = output.hidden_states
    return {
        "hidden_states": torch.stack(states).numpy(),
        "output": last.numpy(),
        "attention_probs": torch.stack(output.attentions).numpy(),
        "logits": output.logits.numpy(),
    }


@functools.cache
def _compiled(config, execution):
    def run(params, inputs):
        collect = frozenset({"hidden_states", "attention_probs"})
        hidden, collected = config.decoder(execution).apply(
            {"params": params["decoder"]}, word_embeddings(params), **inputs, train=False, collect=collect
        )
        collected["hidden_states"] = collected["hidden_states"][:-1]
        return collected | {"output": hidden, "logits": logits(config, params, hidden, execution)[..., : config.vocab_size]}

    return jax.jit(run)


def jax_outputs(config, params, inputs, execution=Execution()):  # noqa: B008
    """Return the same outputs of the JAX model."""
    with jax.default_matmul_precision("highest"):
        return jax.device_get(_compiled(config, execution)(params, inputs))


def random_params(config):
    """Return random parameters of a decoder at scale 0.3, with norm scales around 1."""
    shapes = nn.unbox(jax.eval_shape(lambda key: init_language_model(config, key), jax.random.key(0)))
    generator = np.random.default_rng(1)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: np.float32(0.3 * generator.standard_normal(leaf.shape) + (path[-1].key == "scale")), shapes
    )


def randomised(model, folder):
    """Randomise all parameters of the torch model, norm scales around 1, and save it in `folder`."""
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.eval().named_parameters():
            is_scale = name.endswith("weight") and ("ln_" in name or "layer_norm" in name)
            parameter.normal_(1.0 if is_scale else 0.0, 0.3)
    model.save_pretrained(folder)
    return model


def read(folder):
    """Return (config, parameters) of a folder; no tensor may be left over."""
    config, params, ignored = huggingface.read(folder)
    assert ignored == ()
    return config, params
