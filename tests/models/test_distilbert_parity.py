"""DistilBERT against Hugging Face's torch class, its sizes and its tree of parameters."""

import functools
import json
from pathlib import Path

import flax.linen as nn
import jax
import parity
import pytest

from bertfam import config as gin_files
from bertfam.errors import UserError
from bertfam.features import RowShape
from bertfam.interop import huggingface
from bertfam.models.distilbert import DistilBertConfig, config_from_huggingface, config_to_huggingface
from bertfam.objectives.mlm import Mlm

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
GOLDEN = Path(__file__).parent / "golden" / "bert_parameters.json"
SMALL = {"vocab_size": 99, "num_layers": 3, "hidden_size": 48, "num_heads": 4, "feed_forward_size": 80, "max_length": 24}


def torch_model(folder, **options):
    config = transformers.DistilBertConfig(
        **{"vocab_size": parity.VOCABULARY, "dim": 48, "n_layers": 2, "n_heads": 4, "hidden_dim": 72} | options,
        max_position_embeddings=17,
        attn_implementation="eager",
    )
    return parity.randomised(transformers.DistilBertForMaskedLM(config), folder)


def run(config, params, inputs):
    return parity.jax_outputs(config, params, inputs, mlm=parity.masked_lm(config))


def torch_outputs(model, inputs):
    return parity.torch_outputs(model, inputs, types=False, mlm="logits")


@pytest.mark.parametrize("options", [{}, {"activation": "relu"}, {"tie_word_embeddings": False}])
def test_outputs_match_torch(tmp_path, options):
    model = torch_model(tmp_path, **options)
    config, params, ignored = huggingface.read(tmp_path)
    assert isinstance(config, DistilBertConfig) and ignored == ()
    assert (config.type_vocab_size, config.layer_norm_epsilon) == (0, 1e-12)
    assert config.tie_embeddings == options.get("tie_word_embeddings", True)
    inputs = parity.batch(0, types=2)  # rows of pairs are accepted
    actual, expected = run(config, params, inputs), torch_outputs(model, inputs)
    assert parity.agree(actual, expected, inputs), parity.errors(actual, expected, inputs)


def test_every_entry_of_the_mapping_is_needed(tmp_path, monkeypatch):
    inputs = parity.batch()
    expected = torch_outputs(torch_model(tmp_path), inputs)
    agrees = functools.partial(parity.agree, expected=expected, inputs=inputs)
    parity.assert_every_entry_is_needed(monkeypatch, tmp_path, functools.partial(run, inputs=inputs), agrees)


@pytest.mark.parametrize("tied", [True, False])
def test_import_and_export_round_trip(tmp_path, tied):
    torch_model(tmp_path / "theirs", tie_word_embeddings=tied)
    parity.assert_round_trip(tmp_path / "theirs", tmp_path)


@pytest.mark.parametrize(
    ("parts", "name"), [({"encoder"}, "DistilBertModel"), ({"encoder", "mlm_head"}, "DistilBertForMaskedLM")]
)
def test_exported_model_loads_completely(tmp_path, parts, name):
    config = DistilBertConfig(**SMALL, activation="gelu_tanh", dropout_rate=0.2, attention_dropout_rate=0.3)
    params = jax.tree.map(lambda leaf: jax.numpy.ones(leaf.shape), huggingface.shapes_of(config, frozenset(parts)))
    assert huggingface.write(tmp_path / "out", config, params) == name
    model, info = getattr(transformers, name).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert (model.config.n_layers, model.config.dropout, model.config.attention_dropout) == (3, 0.2, 0.3)
    assert (model.config.activation, model.config.sinusoidal_pos_embds) == ("gelu_new", False)
    assert huggingface.read(tmp_path / "out").config == config


def test_parameter_tree_is_berts_without_types_and_pooler():
    boxed = jax.eval_shape(lambda key: Mlm(DistilBertConfig(**SMALL)).init(key, RowShape(4, 2))[0], jax.random.key(0))
    boxes = jax.tree_util.tree_leaves_with_path(boxed, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))
    tree = {"/".join(key.key for key in path): [list(box.value.shape), list(box.names)] for path, box in boxes}
    bert = json.loads(GOLDEN.read_text())
    left_out = [name for name in bert if name.startswith(("pooler", "nsp_head")) or "token_type" in name]
    assert len(left_out) == 5 and tree == {name: leaf for name, leaf in bert.items() if name not in left_out}


def test_published_size():
    files = ["models/distilbert_base.gin", "objectives/mlm.gin", "runs/defaults.gin"]
    model = gin_files.load(files, ["DistilBertConfig.vocab_size = 30522"]).build("Run").objective.model
    assert model == DistilBertConfig(vocab_size=30_522)
    shapes = huggingface.shapes_of(model, frozenset({"encoder", "mlm_head"}))
    padding = (30_592 - 30_522) * (768 + 1)  # rows of the table and of the bias without a token
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes)) - padding
    with torch.device("meta"):
        assert transformers.DistilBertForMaskedLM(transformers.DistilBertConfig()).num_parameters() == count
    assert count == 66_985_530  # 67.0 M


def test_unsupported_models_are_refused():
    content = config_to_huggingface(DistilBertConfig(**SMALL))
    for change, message in (
        ({"sinusoidal_pos_embds": True}, "sinusoidal_pos_embds = True is not supported"),
        ({"n_layers": None}, "n_layers must be stated, as whole numbers"),
        ({"activation": "mish"}, "'mish' is not supported, only gelu"),
    ):
        with pytest.raises(UserError, match=message):
            config_from_huggingface(content | change)
    with pytest.raises(UserError, match="layer_norm_epsilon = 1e-05 has no place in transformers' DistilBERT, which has 1e-12"):
        config_to_huggingface(DistilBertConfig(**SMALL, layer_norm_epsilon=1e-5))
    with pytest.raises(UserError, match="type_vocab_size = 2 has no place in transformers' DistilBERT, which has 0"):
        config_to_huggingface(DistilBertConfig(**SMALL, type_vocab_size=2))
