"""What the tests of parity with Hugging Face's torch classes share: float32, eager attention, every parameter random."""

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
    """The torch model with all parameters random, scales around 1, saved in `folder`."""
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.eval().named_parameters():
            is_scale = "norm" in name.lower() and name.endswith("weight")
            parameter.normal_(1.0 if is_scale else 0.0, 0.3)
    model.save_pretrained(folder)
    return model


def batch(pad=0, types=1):
    """Random tokens but the padding's, with ragged padding."""
    generator = np.random.default_rng(0)
    shape = (len(LENGTHS), max(LENGTHS))
    segment_ids = (np.arange(shape[1]) < np.array(LENGTHS)[:, None]).astype(np.int32)
    return {
        "tokens": np.where(segment_ids, generator.integers(pad + 1, VOCABULARY, shape), pad),
        "segment_ids": segment_ids,
        "token_type_ids": generator.integers(0, types, shape) * segment_ids,
    }


def theirs(model, inputs, **names):
    """The torch model's hidden states, attention maps, and what `names` calls by the names of its outputs."""
    import torch

    given = {name: torch.tensor(value, dtype=torch.long) for name, value in inputs.items()}
    flags = {"attention_mask": given["segment_ids"], "output_hidden_states": True, "output_attentions": True}
    if names.pop("types", True):
        flags["token_type_ids"] = given["token_type_ids"]
    with torch.no_grad():
        output = model(given["tokens"], **flags)
    found = {name: getattr(output, theirs).numpy() for name, theirs in names.items()}
    return found | {
        "hidden_states": torch.stack(output.hidden_states).numpy(),
        "attention_probs": torch.stack(output.attentions).numpy(),
    }


def ours(config, params, inputs, **heads):
    """Hidden states, attention maps, and of each head what `heads[name](params, hidden)` gives."""
    with jax.default_matmul_precision("highest"):
        return compiled(config, tuple(heads.items()))(params, inputs)


@functools.cache
def compiled(config, heads):
    def run(params, inputs):
        collect = frozenset({"hidden_states", "attention_probs"})
        hidden, outputs = config.encoder().apply({"params": params["encoder"]}, **inputs, train=False, collect=collect)
        return outputs | {name: head(params, hidden) for name, head in heads}

    return jax.jit(run)


@functools.cache
def masked_lm(config):
    """A head for `ours`."""

    def head(params, hidden):
        logits = config.masked_lm_head().apply({"params": params["mlm_head"]}, hidden, word_table(params))
        return logits[..., : config.vocab_size]

    return head


def errors(found, expected, inputs, whole=()):
    """The largest differences at real tokens; those of `whole` everywhere."""
    real = inputs["segment_ids"] > 0
    where = {name: real.reshape(real.shape + (1,) * (value.ndim - 2)) for name, value in expected.items()}
    where |= {"hidden_states": real[..., None], "attention_probs": real[:, None, :, None] & real[:, None, None, :]}
    where |= dict.fromkeys(whole, True)
    return {name: float(np.max(np.abs(found[name] - expected[name]) * where[name])) for name in expected}


def agree(found, expected, inputs, whole=()):
    limits = dict.fromkeys(("hidden_states", "attention_probs", "output"), HIDDEN)
    return all(error <= limits.get(name, LOGITS) for name, error in errors(found, expected, inputs, whole).items())


def assert_every_entry_is_needed(monkeypatch, folder, run, agrees):
    """Without any one entry the import breaks; with fresh values in its place `agrees(run(config, params))` no longer holds.

    But for keys' biases: these add the same to all scores of a query, so that softmax takes them out.
    """
    config, params, _ = huggingface.read(folder)
    family = huggingface.family_of(config)
    assert agrees(run(config, params))
    flat = {"/".join(key.key for key in path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    entries = [entry for entry in family.entries(config) if entry.part in params]
    assert {entry.ours for entry in entries} == set(flat)
    for dropped in entries:
        crippled = dataclasses.replace(family, entries=lambda _, kept=dropped: [entry for entry in entries if entry is not kept])
        with monkeypatch.context() as patch:
            patch.setitem(huggingface.FAMILIES, family.model_type, crippled)
            incomplete = huggingface.read(folder)
        assert jax.tree.structure(incomplete.params) != jax.tree.structure(params)
        # a tensor that holds several parameters still has a place
        assert bool(incomplete.ignored) == (dropped.part_of == (0, 1))
        fresh = np.ones_like if dropped.ours.endswith("scale") else np.zeros_like
        replaced = jax.tree_util.tree_map_with_path(
            lambda path, leaf, name=dropped.ours, fresh=fresh: fresh(leaf) if "/".join(key.key for key in path) == name else leaf,
            params,
        )
        assert agrees(run(config, replaced)) == dropped.ours.endswith("key/bias"), dropped.ours


def assert_there_and_back(folder, tmp_path):
    """Export of an import has the same tensors, bit for bit, under the same names."""
    from safetensors.numpy import load_file

    config, params, ignored = huggingface.read(folder)
    assert ignored == ()
    huggingface.write(tmp_path / "back", config, params)
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "back"))
    assert before.keys() == after.keys() and all(np.array_equal(before[name], after[name]) for name in before)
    assert huggingface.read(tmp_path / "back").config == config
