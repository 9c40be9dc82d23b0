"""Helpers for tests of encoder-decoders against Hugging Face's torch classes, in addition to `parity`."""

import functools

import jax
import numpy as np
import parity
from flax import linen as nn

from bertfam.layers.execution import Execution
from bertfam.models import language_model

# Tokens of each row, of the encoder and of the decoder.
LENGTHS = ((17, 1, 6, 12), (5, 11, 1, 8))
_COLLECTED = ("hidden_states", "attention_probs", "cross_attention_probs")
_TORCH_NAMES = {
    "encoder": {"hidden_states": "encoder_hidden_states", "attention_probs": "encoder_attentions"},
    "decoder": {
        "hidden_states": "decoder_hidden_states",
        "attention_probs": "decoder_attentions",
        "cross_attention_probs": "cross_attentions",
    },
}


def batch(vocabulary=parity.VOCABULARY, first=3):
    """Return random (tokens, segment ids) of encoder and decoder, with ragged padding."""
    generator = np.random.default_rng(0)
    rows = {}
    for name, lengths in zip(("encoder", "decoder"), LENGTHS, strict=True):
        real = np.arange(max(lengths)) < np.array(lengths)[:, None]
        tokens = np.where(real, generator.integers(first, vocabulary, real.shape), 0)
        rows[name] = (tokens.astype(np.int32), real.astype(np.int32))
    return rows


def loaded(model, folder, untied=None):
    """Load the torch model of the folder's files; add a head with other values than the table `untied`, if that is named.

    Published files have a head of their own, but their class ties it unless it finds both tensors.
    """
    from safetensors.numpy import load_file, save_file

    if untied:
        tensors = load_file(folder / "model.safetensors")
        head = np.random.default_rng(7).normal(0, 0.3, tensors[untied].shape).astype(np.float32)
        save_file(tensors | {"lm_head.weight": head}, folder / "model.safetensors", {"format": "pt"})
    return type(model).from_pretrained(folder, attn_implementation="eager").eval()


def torch_outputs(model, inputs):
    """Return hidden states and attention weights of both networks, and logits, by names like "decoder/attention_probs"."""
    import torch

    (encoder_tokens, encoder_mask), (decoder_tokens, decoder_mask) = (
        map(torch.tensor, inputs[name]) for name in ("encoder", "decoder")
    )
    with torch.no_grad():
        output = model(
            input_ids=encoder_tokens.long(),
            attention_mask=encoder_mask,
            decoder_input_ids=decoder_tokens.long(),
            decoder_attention_mask=decoder_mask,
            output_hidden_states=True,
            output_attentions=True,
        )
    results = {"logits": output.logits.numpy()}
    for network, names in _TORCH_NAMES.items():
        for own_name, name in names.items():
            results[f"{network}/{own_name}"] = torch.stack(getattr(output, name)).numpy()
    return results


def jax_outputs(config, params, inputs, execution=Execution()):  # noqa: B008
    """Return the same outputs of the JAX model; inputs with positions as a third element are packed."""
    with jax.default_matmul_precision("highest"):
        return jax.device_get(_compiled(config, execution)(params, inputs))


@functools.cache
def _compiled(config, execution):
    def run(params, inputs):
        hidden, collected = outputs(config, params, inputs, execution, train=False, collect=frozenset(_COLLECTED))
        return collected | {"logits": language_model.logits(config, params, hidden, execution)[..., : config.vocab_size]}

    return jax.jit(run)


def outputs(config, params, inputs, execution, **options):
    """Return the decoder's output, and the values that both networks collect."""
    words, encoded, results = language_model.word_embeddings(params), {}, {}
    for name in ("encoder", "decoder"):
        tokens, segment_ids, *positions = inputs[name]
        row = {"segment_ids": segment_ids, "positions": positions[0] if positions else None}
        network = getattr(config, name)(execution)
        if "collect" in options:
            options = options | {"collect": frozenset(_TORCH_NAMES[name])}
        hidden, collected = network.apply({"params": params[name]}, words, tokens, **row, **encoded, **options)
        encoded = {"encoded": hidden, "encoded_segment_ids": segment_ids}
        results |= {f"{name}/{kind}": value for kind, value in collected.items()}
    return hidden, results


def random_params(config):
    """Return random parameters at scale 0.3, with norm scales around 1."""
    shapes = nn.unbox(jax.eval_shape(lambda key: language_model.init_language_model(config, key), jax.random.key(0)))
    generator = np.random.default_rng(1)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: np.float32(0.3 * generator.standard_normal(leaf.shape) + (path[-1].key == "scale")), shapes
    )


def errors(actual, expected, inputs):
    """Return the largest differences at real tokens."""
    encoder_real, decoder_real = inputs["encoder"][1] > 0, inputs["decoder"][1] > 0
    where = {
        "encoder/hidden_states": encoder_real[..., None],
        "encoder/attention_probs": encoder_real[:, None, :, None] & encoder_real[:, None, None, :],
        "decoder/hidden_states": decoder_real[..., None],
        "decoder/attention_probs": decoder_real[:, None, :, None] & decoder_real[:, None, None, :],
        "decoder/cross_attention_probs": decoder_real[:, None, :, None] & encoder_real[:, None, None, :],
        "logits": decoder_real[..., None],
    }
    assert actual.keys() == expected.keys() == where.keys()
    assert all(actual[name].shape == expected[name].shape for name in where)
    return {name: float(np.max(np.abs(actual[name] - expected[name]) * where[name])) for name in where}


def agree(actual, expected, inputs):
    limits = {"logits": parity.LOGITS}
    return all(error <= limits.get(name, parity.HIDDEN) for name, error in errors(actual, expected, inputs).items())
