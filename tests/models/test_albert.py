"""ALBERT's sizes and shared layers, which agree scanned and unrolled, and with unshared layers of equal values."""

import dataclasses
import json
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import pytest
import small_bert

from bertfam import config as gin_files
from bertfam.features import RowShape
from bertfam.layers.execution import Execution
from bertfam.models import bert
from bertfam.models.albert import AlbertConfig
from bertfam.models.encoder import init_encoder
from bertfam.objectives.albert import MlmSop
from bertfam.training.optimizers import Lamb
from bertfam.training.schedules import ConstantRate

# Lan et al. 2020, table 2, in millions, and the count of transformers' AlbertForPreTraining
PUBLISHED = {"base": (12, 11_813_810), "large": (18, 17_847_474), "xlarge": (60, 59_021_490), "xxlarge": (235, 223_158_450)}
GOLDEN = Path(__file__).parent / "golden" / "albert_parameters.json"
SHARINGS = ("all", "attention", "feed_forward")
SMALL = AlbertConfig(**{field.name: getattr(small_bert.CONFIG, field.name) for field in dataclasses.fields(bert.BertConfig)}
                     | {"embedding_size": 20, "sharing": "all", "dropout_rate": 0.1})  # fmt: skip


def boxed_params(config, length=4):
    return jax.eval_shape(lambda key: MlmSop(config).init(key, RowShape(length, 2))[0], jax.random.key(0))


def test_parameter_tree_is_the_published_one():
    boxes = jax.tree_util.tree_leaves_with_path(
        boxed_params(SMALL), is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)
    )
    tree = {"/".join(key.key for key in path): [list(box.value.shape), list(box.names)] for path, box in boxes}
    assert tree == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("size", PUBLISHED)
def test_published_sizes(size):
    built = gin_files.load(
        [f"models/albert_{size}.gin", "objectives/mlm_sop.gin", "runs/defaults.gin"], ["AlbertConfig.vocab_size = 30000"]
    )
    config = built.build("Run").objective.model
    assert type(config) is AlbertConfig
    count = sum(leaf.size for leaf in jax.tree.leaves(nn.meta.unbox(boxed_params(config))))
    padding = (30_080 - 30_000) * (128 + 1)  # rows of the table and of the bias without a token
    millions, exact = PUBLISHED[size]
    assert count - padding == exact and abs(exact / 1e6 - millions) < 0.06 * millions
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch_config = transformers.AlbertConfig(
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        intermediate_size=config.feed_forward_size,
    )
    with torch.device("meta"):
        assert transformers.AlbertForPreTraining(torch_config).num_parameters() == exact


def shared_modules(config, layers):
    """Return, for each module of a layer, whether all layers share it."""
    return {name: config.sharing in ("all", name.removesuffix("_norm")) for name in layers}


@pytest.mark.parametrize("sharing", SHARINGS)
def test_shared_modules_have_the_parameters_of_one_layer(sharing):
    config = dataclasses.replace(SMALL, sharing=sharing)
    layers = small_bert.random_params(config)["layers"]
    sizes = {name: {leaf.shape[0] for leaf in jax.tree.leaves(module)} for name, module in layers.items()}
    assert {name: {1} if is_shared else {3} for name, is_shared in shared_modules(config, layers).items()} == sizes


def assert_agree(actual, expected):
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=3e-6 * max(1.0, float(np.max(np.abs(other)))))


@pytest.mark.parametrize("sharing", ["all", "attention"])
def test_shared_layers_match_equal_layers_and_sum_their_gradients(sharing):
    """A model without sharing has the same values in every layer."""
    config = dataclasses.replace(SMALL, sharing=sharing)
    params = small_bert.random_params(config)
    repeated = params | {
        "layers": jax.tree.map(lambda leaf: np.broadcast_to(leaf, (config.num_layers, *leaf.shape[1:])), params["layers"])
    }
    is_shared = shared_modules(config, params["layers"])
    (_, hidden), gradient = small_bert.loss_and_gradient(params, config)
    unshared = dataclasses.replace(config, sharing="none")
    (_, expected), unshared_gradient = small_bert.loss_and_gradient(repeated, unshared)
    np.testing.assert_allclose(hidden, expected, atol=1e-5, rtol=1e-5)
    for name, module in gradient["layers"].items():
        summed = unshared_gradient["layers"][name]
        if is_shared[name]:
            summed = jax.tree.map(lambda leaf: leaf.sum(axis=0, keepdims=True), summed)
        assert_agree(module, summed)


def test_scan_and_unroll_agree():
    """Dropout differs by layer though parameters do not."""
    executions, key = [Execution(layers=layers, attention="reference") for layers in ("scan", "unroll")], jax.random.key(7)
    config = dataclasses.replace(SMALL, sharing="attention")
    params, inputs = small_bert.random_params(config), small_bert.batch(config)
    hidden, unrolled = (small_bert.apply(params, inputs, config, execution, key)[0] for execution in executions)
    np.testing.assert_allclose(unrolled, hidden, atol=1e-5, rtol=1e-5)


def test_initial_values_are_those_of_the_first_unshared_layer():
    shared, unshared = (nn.unbox(small_bert.init(dataclasses.replace(SMALL, sharing=sharing))) for sharing in ("all", "none"))
    jax.tree.map(lambda one, all_: np.testing.assert_array_equal(one, all_[:1]), shared["layers"], unshared["layers"])


def test_shared_layer_is_initialised_once():
    """The memory of its initialisation does not grow with the number of layers."""
    memory = []
    for layers in (2, 40):
        config = dataclasses.replace(SMALL, num_layers=layers)
        compiled = jax.jit(lambda key, config=config: nn.unbox(init_encoder(config, key))).lower(jax.random.key(0)).compile()
        memory.append(compiled.memory_analysis().temp_size_in_bytes)
    assert memory[1] < 1.1 * memory[0]


def test_lamb_updates_a_shared_layer_as_one_tensor():
    """Its update is that of the same parameter outside a stack; layer-wise decay counts it as the only layer."""
    boxes, params = small_bert.boxed_shapes(SMALL), small_bert.random_params(SMALL)
    generator = np.random.default_rng(4)
    gradient = jax.tree.map(lambda leaf: generator.standard_normal(leaf.shape).astype(np.float32), params)

    def update(boxes, params, gradient, **options):
        optimizer = Lamb(ConstantRate(peak=1e-2, warmup_steps=0), **options).build(10, boxes)
        update = jax.jit(lambda gradient, params: optimizer.update(gradient, optimizer.init(params), params, step=0)[0])
        return jax.device_get(update(gradient, params))

    updates = update(boxes, params, gradient, clip_norm=None)
    unstacked = jax.tree.map(lambda leaf: leaf[0], params["layers"]), jax.tree.map(lambda leaf: leaf[0], gradient["layers"])
    expected = update(*(unstacked[0], *unstacked), clip_norm=None)
    for name in ("attention", "feed_forward"):
        for one, other in zip(jax.tree.leaves(updates["layers"][name]), jax.tree.leaves(expected[name]), strict=True):
            np.testing.assert_allclose(one[0], other, rtol=1e-5, atol=1e-8)
    kernel = updates["layers"]["feed_forward"]["output"]["kernel"]
    size = np.linalg.norm(params["layers"]["feed_forward"]["output"]["kernel"])
    assert np.linalg.norm(kernel) == pytest.approx(1e-2 * size, rel=1e-4)  # |update| = rate |theta|
    decayed = update(boxes, params, gradient, clip_norm=None, layer_decay=0.5)
    np.testing.assert_allclose(decayed["layers"]["attention_norm"]["scale"], 0.5 * updates["layers"]["attention_norm"]["scale"])
    np.testing.assert_allclose(decayed["embeddings"]["norm"]["scale"], 0.25 * updates["embeddings"]["norm"]["scale"])


def test_padding_does_not_change_real_tokens():
    small_bert.assert_padding_changes_nothing(small_bert.random_params(SMALL), SMALL)


def test_flops_count_every_layer_and_the_projection():
    config = AlbertConfig(vocab_size=30_000)
    assert config.flops(128, 20) == 3 * (
        12 * 128 * (8 * 768**2 + 4 * 768 * 3072 + 4 * 768 * 128) + 20 * (2 * 768 * 128 + 2 * 128 * 30_000) + 2 * 128 * 128 * 768
    )
