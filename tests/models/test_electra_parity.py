"""ELECTRA's two networks against Hugging Face's torch classes, and their published sizes."""

import functools

import jax
import parity
import pytest

from bertfam.config import load
from bertfam.errors import UserError
from bertfam.features import RowShape
from bertfam.interop import huggingface
from bertfam.models.electra import ElectraConfig, replaced_token_head
from bertfam.objectives.electra import Electra

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
CLASSES = {"rtd_head": transformers.ElectraForPreTraining, "mlm_head": transformers.ElectraForMaskedLM}


def torch_model(folder, head, width=32, **options):
    config = transformers.ElectraConfig(
        vocab_size=parity.VOCABULARY,
        embedding_size=width,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=72,
        max_position_embeddings=17,
        attn_implementation="eager",
        **options,
    )
    return parity.randomised(CLASSES[head](config), folder)


@functools.cache
def replaced_token_logits(config):
    """Return the replaced-token head as a function for `parity.jax_outputs`."""
    return lambda params, hidden: replaced_token_head(config).apply({"params": params["rtd_head"]}, hidden)


def run(config, params, inputs):
    head = parity.masked_lm(config) if "mlm_head" in params else replaced_token_logits(config)
    return parity.jax_outputs(config, params, inputs, logits=head)


@pytest.mark.parametrize(
    ("head", "options"),
    [
        ("rtd_head", {}),
        ("rtd_head", {"width": 48}),
        ("rtd_head", {"hidden_act": "relu"}),
        ("mlm_head", {}),
        ("mlm_head", {"width": 48, "hidden_act": "relu"}),
        ("mlm_head", {"tie_word_embeddings": False}),
    ],
)
def test_outputs_match_torch(tmp_path, head, options):
    """The discriminator's head uses the activation of the layers, the generator's always exact GELU."""
    model = torch_model(tmp_path, head, **options)
    config, params, ignored = huggingface.read(tmp_path)
    assert isinstance(config, ElectraConfig) and ignored == () and params.keys() == {"encoder", head}
    assert ("projection" in params["encoder"]["embeddings"]) == (options.get("width") != 48)
    inputs = parity.batch(types=2)
    actual, expected = run(config, params, inputs), parity.torch_outputs(model, inputs, logits="logits")
    assert parity.agree(actual, expected, inputs), parity.errors(actual, expected, inputs)


@pytest.mark.parametrize("head", CLASSES)
def test_every_entry_of_the_mapping_is_needed(tmp_path, monkeypatch, head):
    inputs = parity.batch(types=2)
    expected = parity.torch_outputs(torch_model(tmp_path, head), inputs, logits="logits")
    agrees = functools.partial(parity.agree, expected=expected, inputs=inputs)
    parity.assert_every_entry_is_needed(monkeypatch, tmp_path, functools.partial(run, inputs=inputs), agrees)


@pytest.mark.parametrize("head", CLASSES)
@pytest.mark.parametrize("width", [32, 48])
def test_import_and_export_round_trip(tmp_path, head, width):
    torch_model(tmp_path / "theirs", head, width)
    parity.assert_round_trip(tmp_path / "theirs", tmp_path)


def test_config_without_embedding_size_is_refused(tmp_path):
    torch_model(tmp_path, "rtd_head")
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"embedding_size": 32,', ""))
    with pytest.raises(UserError, match="config.json: embedding_size must be stated, as a whole number"):
        huggingface.read(tmp_path)


def count_parameters(config, parts):
    """Count the parameters in files."""
    shapes = huggingface.shapes_of(config, frozenset(parts))
    padding = config.padded_vocab_size - config.require_table_rows
    unused = padding * (config.table_width + ("mlm_head" in parts))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes)) - unused


# millions of parameters of discriminators, and of generators on the Hugging Face hub
@pytest.mark.parametrize(
    ("size", "width", "discriminator", "generator", "hub"),
    [("small", 0.25, 13.5, None, None), ("base", 0.33333, 109.5, 256, 33.7), ("large", 0.25, 335.1, 256, 51.3)],
)
def test_published_sizes(size, width, discriminator, generator, hub):
    config = load([f"models/electra_{size}.gin", "objectives/electra.gin", "runs/defaults.gin"], ["TextData.cache_dir='none'"])
    objective = config.build("Run").objective.sized(30522)
    assert objective.generator_width == width
    networks = objective.networks
    counts = {
        name: count_parameters(networks[name], {"encoder", head})
        for name, head in (("discriminator", "rtd_head"), ("generator", "mlm_head"))
    }
    assert counts["discriminator"] == pytest.approx(discriminator * 1e6, abs=6e4)
    if hub:
        assert networks["generator"].hidden_size == generator and counts["generator"] == pytest.approx(hub * 1e6, abs=6e4)
    # The counts are exactly those of the torch classes; both networks share the tables.
    for name, cls in (("discriminator", CLASSES["rtd_head"]), ("generator", CLASSES["mlm_head"])):
        content = huggingface.family_of(networks[name]).config_to_huggingface(networks[name])
        with torch.device("meta"):
            assert counts[name] == sum(p.numel() for p in cls(transformers.ElectraConfig(**content)).parameters())
    tree = jax.eval_shape(lambda key: objective.init(key, RowShape(8, 1))[0], jax.random.key(0))
    padded = objective.model.padded_vocab_size - 30522
    shared = sum(leaf.size for leaf in jax.tree.leaves(tree["embeddings"])) - padded * objective.model.table_width
    total = sum(leaf.size for leaf in jax.tree.leaves(tree)) - padded * (objective.model.table_width + 1)
    assert total == sum(counts.values()) - shared


def test_sizes_of_the_generator():
    small = ElectraConfig(num_layers=12, hidden_size=256, num_heads=4, feed_forward_size=1024, embedding_size=128)
    sizes = {}
    for width, depth in ((0.25, 1.0), (1.0, 1.0), (0.5, 0.5)):
        derived = small.generator(width, depth)
        assert derived.embedding_size == 128
        sizes[width, depth] = (derived.num_layers, derived.hidden_size, derived.num_heads, derived.feed_forward_size)
    assert sizes == {(0.25, 1.0): (12, 64, 1, 256), (1.0, 1.0): (12, 256, 4, 1024), (0.5, 0.5): (6, 128, 2, 512)}
    assert ElectraConfig(hidden_size=800, num_heads=10).generator(0.25, 1.0).num_heads == 2  # 3 do not divide 200
    message = (
        "generator_width 0.001 and generator_depth 1.0 give no generator of this model: ElectraConfig.hidden_size = 0 must be"
    )
    with pytest.raises(UserError, match=message):
        Electra(small, generator_width=0.001)
