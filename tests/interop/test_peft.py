"""Adapters in the format of peft: names, shapes, and the products that are added to the weights of the base."""

import importlib
import json

import jax
import numpy as np
import pytest
from flax import linen as nn
from safetensors.numpy import load_file

from bertfam.errors import UserError
from bertfam.features import RowShape
from bertfam.interop import huggingface, peft
from bertfam.objectives.fine_tuning.heads import Classification
from bertfam.objectives.fine_tuning.lora import Lora
from bertfam.objectives.fine_tuning.objective import FineTuning

LORA = Lora(3, 6.0)
SIZES = {"vocab_size": 20, "num_layers": 2, "hidden_size": 8, "num_heads": 2, "feed_forward_size": 12, "max_length": 16}
_BERT = "encoder.layer.0."
# family -> a module with an adapter, the shapes of its A and B, and the modules of the head
FAMILIES = {
    "bert.BertConfig": (f"bert.{_BERT}intermediate.dense", (3, 8), (12, 3), ["bert.pooler.dense", "classifier"]),
    "roberta.RobertaConfig": (f"roberta.{_BERT}attention.output.dense", (3, 8), (8, 3), ["classifier"]),
    "albert.AlbertConfig": ("albert.encoder.albert_layer_groups.0.albert_layers.0.ffn", (3, 8), (12, 3), None),
    "modernbert.ModernBertConfig": ("model.layers.1.attn.Wqkv", (9, 8), (24, 9), ["classifier", "head"]),
    "gpt2.Gpt2Config": ("transformer.h.1.attn.c_attn", (9, 8), (24, 9), ["score"]),
    "t5.T5Config": ("transformer.decoder.block.0.layer.1.EncDecAttention.q", None, None, ["classification_head"]),
}


def random_objective(family):
    """Return the objective of a small classifier with adapters, and random parameters."""
    module, _, name = family.partition(".")
    sizes = {field: value for field, value in SIZES.items() if (module, field) != ("t5", "max_length")}
    objective = FineTuning(getattr(importlib.import_module(f"bertfam.models.{module}"), name)(**sizes), HEAD, lora=LORA)
    shapes = jax.eval_shape(lambda key: nn.meta.unbox(objective.init(key, RowShape(8, 0))[0]), jax.random.key(0))
    generator = np.random.default_rng(0)
    return objective, jax.tree.map(lambda leaf: generator.standard_normal(leaf.shape, np.float32), shapes)


HEAD = Classification(("no", "yes", "maybe"))


def write(objective, params, folder, base="base"):
    folder.mkdir()
    peft.write(folder, objective.model, params, LORA, base=base, dtype="float32", extra=objective.huggingface_values)
    return json.loads((folder / peft.CONFIG).read_text()), load_file(folder / peft.TENSORS)


@pytest.mark.parametrize("family", FAMILIES)
def test_base_and_adapter_are_the_merged_model(family, tmp_path):
    objective, params = random_objective(family)
    config, tensors = write(objective, params, tmp_path / "adapter")
    module, inner, outer, saved = FAMILIES[family]
    if inner:
        shapes = [tensors[f"base_model.model.{module}.lora_{name}.weight"].shape for name in "AB"]
        assert shapes == [inner, outer]
    assert module in config["target_modules"] and (saved is None or config["modules_to_save"] == saved)

    network = {name: value for name, value in params.items() if name != "adapters"}
    base, merged = (
        huggingface.to_tensors(huggingface.family_of(objective.model), objective.model, tree)
        for tree in (network, objective.split(params)[objective.model.kind])
    )
    heads = set()
    for name, weight in base.items():
        where, stored = name.removesuffix(".weight"), f"base_model.model.{name}"
        if where in config["target_modules"]:
            first, second = (tensors.pop(f"base_model.model.{where}.lora_{factor}.weight") for factor in "AB")
            assert len(first) == config["rank_pattern"].get(where, config["r"])
            scale = config["alpha_pattern"].get(where, config["lora_alpha"]) / len(first)
            update = np.float64(second) @ first
            update = update.T if config["fan_in_fan_out"] else update
            np.testing.assert_allclose(weight + scale * update, merged[name], rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(weight, merged[name])
        if stored in tensors:
            np.testing.assert_array_equal(tensors.pop(stored), weight)
            heads.add(name)
    assert not tensors and heads and all(any(part in name for part in config["modules_to_save"]) for name in heads)


def test_xlnet_has_no_linear_layers_for_adapters(tmp_path):
    objective, params = random_objective("xlnet.XLNetConfig")
    with pytest.raises(UserError, match=r"rel_attn\.q is no linear layer in transformers' XLNetForSequenceClassification"):
        write(objective, params, tmp_path / "adapter")


def test_bases_that_are_no_models_are_refused(tmp_path):
    objective, params = random_objective("bert.BertConfig")
    for base in (str(tmp_path / "none"), str(tmp_path)):
        with pytest.raises(UserError, match="is no Hugging Face folder"):
            peft.check_base(base, params)
    peft.check_base("bert-base-uncased", params)
    encoder = {"encoder": params["encoder"]}
    for dtype in ("float32", "bfloat16"):
        huggingface.write(tmp_path / dtype, objective.model, encoder, dtype=dtype)
        peft.check_base(str(tmp_path / dtype), params)
