"""What the tests of encoder-decoders' parity with Hugging Face's torch classes share, beside `parity`."""

import functools

import jax
import numpy as np
import parity
import xla
from flax import linen as nn

from bertfam.layers.execution import Execution
from bertfam.models import language_model

# Tokens of each row, of the encoder and of the decoder.
LENGTHS = ((17, 1, 6, 12), (5, 11, 1, 8))
_COLLECTED = ("hidden_states", "attention_probs", "cross_attention_probs")
_THEIRS = {
    "encoder": {"hidden_states": "encoder_hidden_states", "attention_probs": "encoder_attentions"},
    "decoder": {
        "hidden_states": "decoder_hidden_states",
        "attention_probs": "decoder_attentions",
        "cross_attention_probs": "cross_attentions",
    },
}


def batch(vocabulary=parity.VOCABULARY, first=3):
    """Random tokens, with ragged padding in encoder and decoder: (tokens, segment ids) of each."""
    generator = np.random.default_rng(0)
    found = {}
    for name, lengths in zip(("encoder", "decoder"), LENGTHS, strict=True):
        real = np.arange(max(lengths)) < np.array(lengths)[:, None]
        tokens = np.where(real, generator.integers(first, vocabulary, real.shape), 0)
        found[name] = (tokens.astype(np.int32), real.astype(np.int32))
    return found


def loaded(model, folder, untied=None):
    """The torch model that the folder's files make; where the word table is named, these get a head of other values.

    As published files have a head of its own: their class ties it unless it finds both.
    """
    from safetensors.numpy import load_file, save_file

    if untied:
        tensors = load_file(folder / "model.safetensors")
        head = np.random.default_rng(7).normal(0, 0.3, tensors[untied].shape).astype(np.float32)
        save_file(tensors | {"lm_head.weight": head}, folder / "model.safetensors", {"format": "pt"})
    return type(model).from_pretrained(folder, attn_implementation="eager").eval()


def theirs(model, inputs):
    """Hidden states and maps of both networks, and logits, by names like "decoder/attention_probs"."""
    import torch

    (read, read_mask), (written, written_mask) = (map(torch.tensor, inputs[name]) for name in ("encoder", "decoder"))
    with torch.no_grad():
        output = model(
            input_ids=read.long(),
            attention_mask=read_mask,
            decoder_input_ids=written.long(),
            decoder_attention_mask=written_mask,
            output_hidden_states=True,
            output_attentions=True,
        )
    found = {"logits": output.logits.numpy()}
    for network, names in _THEIRS.items():
        for ours, name in names.items():
            found[f"{network}/{ours}"] = torch.stack(getattr(output, name)).numpy()
    return found


def ours(config, params, inputs, execution=Execution()):  # noqa: B008
    """The same of our parameters, and the decoder's output; inputs with positions as a third are packed."""
    with jax.default_matmul_precision("highest"):
        return _compiled(config, execution)(params, inputs)


@functools.cache
def _compiled(config, execution):
    def run(params, inputs):
        hidden, found = outputs(config, params, inputs, execution, train=False, collect=frozenset(_COLLECTED))
        return found | {"logits": language_model.logits(config, params, hidden, execution)[..., : config.vocab_size]}

    return jax.jit(run, compiler_options=xla.OPTIMISED)


def outputs(config, params, inputs, execution, **options):
    """The decoder's output, and what both networks collect."""
    words, encoded, found = language_model.word_embeddings(params), {}, {}
    for name in ("encoder", "decoder"):
        tokens, segment_ids, *positions = inputs[name]
        row = {"segment_ids": segment_ids, "positions": positions[0] if positions else None}
        network = getattr(config, name)(execution)
        if "collect" in options:
            options = options | {"collect": frozenset(_THEIRS[name])}
        hidden, collected = network.apply({"params": params[name]}, words, tokens, **row, **encoded, **options)
        encoded = {"encoded": hidden, "encoded_segment_ids": segment_ids}
        found |= {f"{name}/{kind}": value for kind, value in collected.items()}
    return hidden, found


def random_params(config):
    """Every parameter random at scale 0.3, norm scales around 1."""
    shapes = nn.unbox(jax.eval_shape(lambda key: language_model.init_language_model(config, key), jax.random.key(0)))
    numbers = np.random.default_rng(1)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: np.float32(0.3 * numbers.standard_normal(leaf.shape) + (path[-1].key == "scale")), shapes
    )


def errors(found, expected, inputs):
    """The largest differences at real tokens."""
    read, written = inputs["encoder"][1] > 0, inputs["decoder"][1] > 0
    where = {
        "encoder/hidden_states": read[..., None],
        "encoder/attention_probs": read[:, None, :, None] & read[:, None, None, :],
        "decoder/hidden_states": written[..., None],
        "decoder/attention_probs": written[:, None, :, None] & written[:, None, None, :],
        "decoder/cross_attention_probs": written[:, None, :, None] & read[:, None, None, :],
        "logits": written[..., None],
    }
    assert found.keys() == expected.keys() == where.keys()
    assert all(found[name].shape == expected[name].shape for name in where)
    return {name: float(np.max(np.abs(found[name] - expected[name]) * where[name])) for name in where}


def agree(found, expected, inputs):
    limits = {"logits": parity.LOGITS}
    return all(error <= limits.get(name, parity.HIDDEN) for name, error in errors(found, expected, inputs).items())
