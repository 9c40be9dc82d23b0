"""Helpers for tests against Hugging Face's torch classes: float32, eager attention, every parameter random."""

import dataclasses
import functools

import jax
import numpy as np

from bertfam.interop import huggingface
from bertfam.models.encoder import word_table

HIDDEN, LOGITS = 1e-4, 1e-3
LENGTHS = (17, 1, 6, 12)
VOCABULARY = 101


def randomised(model, folder):
    """Randomise all parameters of the torch model, scales around 1, and save it in `folder`."""
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.eval().named_parameters():
            is_scale = "norm" in name.lower() and name.endswith("weight")
            parameter.normal_(1.0 if is_scale else 0.0, 0.3)
    model.save_pretrained(folder)
    return model


def batch(pad=0, types=1):
    """Return random tokens other than the padding token, with ragged padding."""
    generator = np.random.default_rng(0)
    shape = (len(LENGTHS), max(LENGTHS))
    segment_ids = (np.arange(shape[1]) < np.array(LENGTHS)[:, None]).astype(np.int32)
    return {
        "tokens": np.where(segment_ids, generator.integers(pad + 1, VOCABULARY, shape), pad),
        "segment_ids": segment_ids,
        "token_type_ids": generator.integers(0, types, shape) * segment_ids,
    }


def torch_outputs(model, inputs, **names):
    """Return the torch model's hidden states, its attention weights, and the outputs that the values of `names` name."""
    import torch

    tensors = {name: torch.tensor(value, dtype=torch.long) for name, value in inputs.items()}
    flags = {"attention_mask": tensors["segment_ids"], "output_hidden_states": True, "output_attentions": True}
    if names.pop("types", True):
        flags["token_type_ids"] = tensors["token_type_ids"]
    with torch.no_grad():
        output = model(tensors["tokens"], **flags)
    outputs = {name: getattr(output, attribute).numpy() for name, attribute in names.items()}
    return outputs | {
        "hidden_states": torch.stack(output.hidden_states).numpy(),
        "attention_probs": torch.stack(output.attentions).numpy(),
    }


def jax_outputs(config, params, inputs, **heads):
    """Return hidden states, attention weights, and the result of `heads[name](params, hidden)` for each head."""
    with jax.default_matmul_precision("highest"):
        return jax.device_get(compiled(config, tuple(heads.items()))(params, inputs))


@functools.cache
def compiled(config, heads):
    def run(params, inputs):
        collect = frozenset({"hidden_states", "attention_probs"})
        hidden, outputs = config.encoder().apply({"params": params["encoder"]}, **inputs, train=False, collect=collect)
        return outputs | {name: head(params, hidden) for name, head in heads}

    return jax.jit(run)


@functools.cache
def masked_lm(config):
    """Return the masked-language-model head as a function for `jax_outputs`."""

    def head(params, hidden):
        logits = config.masked_lm_head().apply({"params": params["mlm_head"]}, hidden, word_table(params))
        return logits[..., : config.vocab_size]

    return head


def errors(actual, expected, inputs, everywhere=()):
    """Return the largest differences at real tokens, or anywhere for the names in `everywhere`."""
    real = inputs["segment_ids"] > 0
    where = {name: real.reshape(real.shape + (1,) * (value.ndim - 2)) for name, value in expected.items()}
    where |= {"hidden_states": real[..., None], "attention_probs": real[:, None, :, None] & real[:, None, None, :]}
    where |= dict.fromkeys(everywhere, True)
    return {name: float(np.max(np.abs(actual[name] - expected[name]) * where[name])) for name in expected}


def agree(actual, expected, inputs, everywhere=()):
    limits = dict.fromkeys(("hidden_states", "attention_probs", "output"), HIDDEN)
    return all(error <= limits.get(name, LOGITS) for name, error in errors(actual, expected, inputs, everywhere).items())


def assert_every_entry_is_needed(monkeypatch, folder, run, agrees):
    """Check that the import breaks without any one entry, and that `agrees` is False with fresh values in its place.

    Biases of keys are exempt from the second: they add the same to all scores of a query, so that softmax cancels them.
    """
    config, params, _ = huggingface.read(folder)
    family = huggingface.family_of(config)
    assert agrees(run(config, params))
    flat = {"/".join(key.key for key in path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    entries = [entry for entry in family.entries(config) if entry.part in params]
    assert {entry.ours for entry in entries} == set(flat)
    for dropped in entries:
        reduced = dataclasses.replace(family, entries=lambda _, kept=dropped: [entry for entry in entries if entry is not kept])
        with monkeypatch.context() as patch:
            patch.setitem(huggingface.FAMILIES, family.model_type, reduced)
            incomplete = huggingface.read(folder)
        assert jax.tree.structure(incomplete.params) != jax.tree.structure(params)
        # a tensor that holds several parameters is still used
        assert bool(incomplete.ignored) == (dropped.part_of == (0, 1))
        fresh = np.ones_like if dropped.ours.endswith("scale") else np.zeros_like
        replaced = jax.tree_util.tree_map_with_path(
            lambda path, leaf, name=dropped.ours, fresh=fresh: fresh(leaf) if "/".join(key.key for key in path) == name else leaf,
            params,
        )
        assert agrees(run(config, replaced)) == dropped.ours.endswith(("key/bias", "key_global/bias")), dropped.ours


def assert_round_trip(folder, tmp_path):
    """Check that the export of an import has the same tensors, bit for bit, under the same names."""
    from safetensors.numpy import load_file

    config, params, ignored = huggingface.read(folder)
    assert ignored == ()
    huggingface.write(tmp_path / "back", config, params)
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "back"))
    assert before.keys() == after.keys() and all(np.array_equal(before[name], after[name]) for name in before)
    assert huggingface.read(tmp_path / "back").config == config
