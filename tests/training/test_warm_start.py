"""Warm start of a run over another vocabulary: copied tensors and means of the rows of another model."""

import jax
import numpy as np
import pytest
import tiny
from flax import linen as nn
from initial_state import skip_initialisation

from bertfam.data.text_data import TextData
from bertfam.data.vocabularies.matching import Origins
from bertfam.models.albert import AlbertConfig
from bertfam.models.bert import BertConfig
from bertfam.models.electra import ElectraConfig
from bertfam.models.modernbert import ModernBertConfig
from bertfam.objectives.electra import Electra
from bertfam.objectives.mlm import Mlm
from bertfam.training.optimizers import Adafactor, AdamW, Lamb, Muon
from bertfam.training.run import Run
from bertfam.training.stages import Stage
from bertfam.training.trainer import Trainer
from bertfam.training.warm_start.parameters import WarmStart

ADAM = AdamW()
OLD, NEW = 50, 140  # tables of 128 and of 256 rows
SIZES = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "feed_forward_size": 32, "max_length": 16}
# The new tokens 0 to 4 and 139 are in the old vocabulary, 7 and 130 are spelt by old tokens, and all others are new.
KEPT = {0: 0, 1: 2, 2: 1, 3: 3, 4: 49, 139: 30}
SPELT = {7: (4, 30), 130: (9, 9, 8)}
OBJECTIVES = {
    "bert": Mlm(BertConfig(**SIZES)),
    "untied, with padded tables in files": Mlm(BertConfig(**SIZES, tie_embeddings=False, table_rows=200)),
    "albert": Mlm(AlbertConfig(embedding_size=8, **SIZES)),
    "modernbert": Mlm(ModernBertConfig(**SIZES)),
    "electra": Electra(ElectraConfig(**SIZES | {"embedding_size": 8}), generator_width=0.5),
}


def origins():
    sources = {**{new: (old,) for new, old in KEPT.items()}, **SPELT}
    pieces = sorted(sources)
    rows = np.array([row for piece in pieces for row in sources[piece]], np.int32)
    counts = np.array([len(sources[piece]) for piece in pieces])
    return Origins(NEW, np.array(pieces, np.int32), np.array([piece in KEPT for piece in pieces]), rows, counts)


def run_of(objective, size, optimizer=ADAM):
    return Run(objective=objective, data=TextData(), stages=(Stage(4, 16, 8),), optimizer=optimizer, average_decay=0.9).sized(
        size
    )


def trainer_of(objective, size, optimizer=ADAM):
    run = run_of(objective, size, optimizer)
    return Trainer(run, run.mesh.build(jax.devices()[:1]))


@pytest.fixture(autouse=True)
def _random_states(monkeypatch):
    skip_initialisation(monkeypatch)


def randomised(boxed, seed):
    generator = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: generator.normal(size=leaf.shape).astype(leaf.dtype), nn.unbox(boxed))


def leaves(tree, is_leaf=None):
    leaves_by_path = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
    return {
        tuple(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", None)))) for key in path): leaf
        for path, leaf in leaves_by_path
    }


def axes_of(trainer, tree):
    """Return the logical axis names by path."""
    is_box = lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)  # noqa: E731
    return {path: getattr(leaf, "names", ()) for path, leaf in leaves(getattr(trainer.run.boxed_state, tree), is_box).items()}


def assert_rows(actual, old, fresh, axis, *, spelt=True):
    actual, old, fresh = (np.moveaxis(np.asarray(table), axis, 0) for table in (actual, old, fresh))
    for new in range(len(actual)):
        if new in KEPT:
            expected = old[KEPT[new]]
        elif new in SPELT and spelt:
            expected = sum(old[row].astype(np.float64) for row in SPELT[new]) / len(SPELT[new])
        else:
            expected = fresh[new]
        assert np.array_equal(actual[new], np.asarray(expected).astype(actual.dtype)), new


@pytest.mark.parametrize("name", OBJECTIVES)
def test_parameters_of_every_family(name):
    objective = OBJECTIVES[name]
    old = randomised(run_of(objective, OLD).boxed_params, 1)
    trainer = trainer_of(objective, NEW)
    fresh, state = trainer.new_state(), WarmStart("other", old, origins()).state(trainer)
    names, params, before, new = axes_of(trainer, "params"), *map(leaves, (state.params, old, fresh.params))
    assert params.keys() == before.keys()
    tables = [path for path in params if "vocab" in names[path]]
    biases = {path[0] for path in tables if path[-1] == "bias"}
    assert len(tables) == (3 if name.startswith("untied") else 2) and biases == {"mlm_head"}
    for path, leaf in params.items():
        if path in tables:
            assert_rows(leaf, before[path], new[path], names[path].index("vocab"))
        else:
            assert np.array_equal(leaf, before[path]), path
    assert all(np.array_equal(leaf, params[path]) for path, leaf in leaves(state.average).items())
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(state.opt_state)) and state.step == 0


def test_only_kept_rows_are_copied_without_means():
    trainer = trainer_of(OBJECTIVES["bert"], NEW)
    old = randomised(run_of(OBJECTIVES["bert"], OLD).boxed_params, 1)
    state = WarmStart("other", {"encoder": old["encoder"]}, origins().of_known).state(trainer)
    table, fresh = (tree.params["encoder"]["embeddings"]["word"]["table"] for tree in (state, trainer.new_state()))
    assert_rows(table, old["encoder"]["embeddings"]["word"]["table"], fresh, 0, spelt=False)
    assert np.array_equal(state.params["mlm_head"]["bias"], np.zeros(256))


WHOLE = ("encoder", "mlm_head")


@pytest.mark.parametrize(
    ("optimizer", "parts"),
    [
        (AdamW(), ("encoder",)),
        (Lamb(), WHOLE),
        (Muon(), WHOLE),
        (Adafactor(min_size_to_factor=8), WHOLE),
    ],
    ids=lambda value: len(value) if isinstance(value, tuple) else type(value).__name__,
)
def test_moments_of_copied_parameters_are_copied(optimizer, parts):
    """New tokens and parts that are not copied have moments of 0; the optimizer's count continues, the run's starts anew."""
    before = run_of(OBJECTIVES["bert"], OLD, optimizer).boxed_state
    old, moments = randomised(before.params, 1), leaves(randomised(before.opt_state, 2))
    moments = {path: np.full_like(leaf, 17) if leaf.dtype == np.int32 else leaf for path, leaf in moments.items()}
    trainer = trainer_of(OBJECTIVES["bert"], NEW, optimizer)
    state = WarmStart("other", {part: old[part] for part in parts}, origins(), moments).state(trainer)
    names, copied = axes_of(trainer, "opt_state"), leaves(state.opt_state)
    assert copied.keys() == moments.keys() and state.step == 0
    tables = [path for path in copied if "vocab" in names[path]]
    assert len(tables) >= 2 and any("table" in path for path in tables)
    for path, leaf in copied.items():
        if "mlm_head" in path and "mlm_head" not in parts:
            assert not np.any(leaf), path
        elif path in tables:
            assert_rows(leaf, moments[path], np.zeros(leaf.shape), names[path].index("vocab"), spelt=False)
        else:
            assert np.array_equal(leaf, moments[path]), path


def test_kept_tokens_train_as_in_the_old_run():
    """Over the same vocabulary the next update is that of the old run, since parameters and moments are the same."""
    objective = tiny.objective()
    trainer = trainer_of(objective, tiny.VOCABULARY)
    state = trainer.new_state()
    shardings = trainer.stages[0].shardings
    batches = [
        {name: jax.device_put(value, shardings[name]) for name, value in tiny.batch(8, seed=seed).items()} for seed in (0, 1)
    ]
    with jax.set_mesh(trainer.mesh), trainer._axis_rules():
        state, _ = trainer._programs_of(0).step(state, batches[0], tiny.SEED)
    kept = jax.device_get(state)
    same = np.arange(tiny.VOCABULARY, dtype=np.int32)
    identity = Origins(len(same), same, np.ones(len(same), bool), same, np.ones(len(same), int))
    moments = {path: np.asarray(leaf) for path, leaf in leaves(kept.opt_state).items()}
    warm_started = WarmStart("other", kept.params, identity, moments).state(trainer)
    assert warm_started.step == 0
    warm_started = warm_started._replace(
        step=kept.step, params=jax.tree.map(jax.device_put, kept.params, trainer.shardings.params)
    )
    with jax.set_mesh(trainer.mesh), trainer._axis_rules():
        one, _ = trainer._programs_of(0).step(state, batches[1], tiny.SEED)
        other, _ = trainer._programs_of(0).step(warm_started, batches[1], tiny.SEED)
    for path, leaf in leaves(one.params).items():
        rows = tiny.VOCABULARY if "table" in path and "word" in path else None
        assert np.array_equal(leaf[:rows], leaves(other.params)[path][:rows]), path
