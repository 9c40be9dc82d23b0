"""BERT against Hugging Face's torch classes: float32, eager attention, every parameter random."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from bertfam.interop import huggingface
from bertfam.models import bert
from bertfam.models.bert import BERT
from bertfam.models.encoder import pooler, sentence_head, word_table
from bertfam.models.mapping import CLASSIFIERS

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

HIDDEN, LOGITS = 1e-4, 1e-3
LENGTHS = (17, 1, 6, 12)
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}


def torch_model(folder, **options):
    """Return a tiny BertForPreTraining with random parameters, saved in `folder`."""
    config = transformers.BertConfig(
        vocab_size=101,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=72,
        max_position_embeddings=20,
        type_vocab_size=3,
        attn_implementation="eager",
        **options,
    )
    torch.manual_seed(0)
    model = transformers.BertForPreTraining(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if name.endswith("LayerNorm.weight") else 0.0, 0.3)
    model.save_pretrained(folder)
    return model


def batch():
    generator = np.random.default_rng(0)
    shape = (len(LENGTHS), max(LENGTHS))
    return {
        "tokens": generator.integers(0, 101, shape),
        "segment_ids": (np.arange(shape[1]) < np.array(LENGTHS)[:, None]).astype(np.int32),
        "token_type_ids": generator.integers(0, 3, shape),
    }


def torch_outputs(model):
    inputs = {name: torch.tensor(value, dtype=torch.long) for name, value in batch().items()}
    with torch.no_grad():
        output = model(
            inputs["tokens"],
            attention_mask=inputs["segment_ids"],
            token_type_ids=inputs["token_type_ids"],
            output_hidden_states=True,
            output_attentions=True,
        )
    return {
        "hidden_states": torch.stack(output.hidden_states).numpy(),
        "attention_probs": torch.stack(output.attentions).numpy(),
        "mlm": output.prediction_logits.numpy(),
        "nsp": output.seq_relationship_logits.numpy(),
    }


@functools.partial(jax.jit, static_argnums=0)
@jax.default_matmul_precision("highest")
def jax_outputs(config, params):
    collect = frozenset({"hidden_states", "attention_probs"})
    hidden, outputs = bert.Encoder(config).apply({"params": params["encoder"]}, **batch(), train=False, collect=collect)
    pooled = pooler(config).apply({"params": params["pooler"]}, hidden[:, 0])
    mlm = config.masked_lm_head().apply({"params": params["mlm_head"]}, hidden, word_table(params))
    nsp = sentence_head(config).apply({"params": params["nsp_head"]}, pooled)
    return outputs | {"mlm": mlm[..., : config.vocab_size], "nsp": nsp}


def errors(actual, expected):
    """Return the largest differences at real tokens."""
    real = batch()["segment_ids"] > 0
    pairs_of_tokens = real[:, None, :, None] & real[:, None, None, :]
    where = {"hidden_states": real[..., None], "attention_probs": pairs_of_tokens, "mlm": real[..., None], "nsp": True}
    return {name: float(np.max(np.abs(actual[name] - expected[name]) * where[name])) for name in where}


def agree(actual, expected):
    difference = errors(actual, expected)
    logits = ("mlm", "nsp")
    return all(error <= (LOGITS if name in logits else HIDDEN) for name, error in difference.items())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_outputs_match_torch(activation, tmp_path):
    model = torch_model(tmp_path, hidden_act=activation)
    config, params, ignored = huggingface.read(tmp_path)
    assert config.activation == ACTIVATIONS[activation] and ignored == () and config.tie_embeddings
    actual, expected = jax_outputs(config, params), torch_outputs(model)
    assert agree(actual, expected), errors(actual, expected)


def test_untied_head(tmp_path):
    model = torch_model(tmp_path, tie_word_embeddings=False)
    config, params, _ = huggingface.read(tmp_path)
    assert not config.tie_embeddings
    actual, expected = jax_outputs(config, params), torch_outputs(model)
    assert agree(actual, expected), errors(actual, expected)


def test_every_entry_of_the_mapping_is_needed(tmp_path, monkeypatch):
    """Without any one entry the import breaks, and with fresh values in its place the outputs differ from torch's."""
    expected = torch_outputs(torch_model(tmp_path))
    config, params, _ = huggingface.read(tmp_path)
    flat = {"/".join(key.key for key in path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    entries = [entry for entry in BERT.entries(config) if entry.part not in CLASSIFIERS]
    assert {entry.ours for entry in entries} == set(flat)
    for dropped in entries:
        remaining = tuple(entry for entry in entries if entry is not dropped)
        reduced = dataclasses.replace(BERT, entries=lambda _, remaining=remaining: remaining)
        monkeypatch.setitem(huggingface.FAMILIES, "bert", reduced)
        incomplete = huggingface.read(tmp_path)
        assert not same_structure(incomplete.params, params) and len(incomplete.ignored) >= 1
        with pytest.raises(ValueError, match=dropped.ours):
            huggingface.to_tensors(reduced, config, params)

        fresh = np.ones_like if dropped.ours.endswith("scale") else np.zeros_like
        replaced = jax.tree_util.tree_map_with_path(
            lambda path, leaf, name=dropped.ours, fresh=fresh: fresh(leaf) if "/".join(key.key for key in path) == name else leaf,
            params,
        )
        # A key bias adds the same to all scores of a query, so that softmax cancels it.
        assert agree(jax_outputs(config, replaced), expected) == dropped.ours.endswith("key/bias"), dropped.ours


def same_structure(one, other):
    return jax.tree.structure(one) == jax.tree.structure(other)
