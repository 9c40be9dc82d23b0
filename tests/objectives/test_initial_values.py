"""Initial parameters: a part has the same values whatever other parts a model has."""

import dataclasses
import functools
from dataclasses import dataclass

import jax
import numpy as np
import pytest
import tiny
from flax import linen as nn
from test_electra import OBJECTIVE as ELECTRA
from test_language_models import GPT2
from test_mlm_sbo import OBJECTIVE as MLM_SBO
from test_pair_objectives import OBJECTIVES as PAIRS

from bertfam.features import RowShape
from bertfam.layers.initializers import named_key
from bertfam.models.encoder import init_on_hidden, sentence_head
from bertfam.objectives.causal_lm import CausalLm
from bertfam.objectives.mlm import Mlm

BERT = tiny.objective()


@dataclass(frozen=True)
class MlmNspTopic(type(BERT)):
    """MLM + NSP with a third head, of a user's own task."""

    def init(self, key, shape):
        params, carry, aux = super().init(key, shape)
        head = init_on_hidden(self.model, sentence_head(self.model, 7), named_key(key, "topic_head"))
        return {"topic_head": head} | params, carry, aux


@functools.cache
def initial(objective):
    """Return the initial parameters of one seed, by path: without a program of them all, equal draws are compiled once."""
    shape = RowShape(length=16, predictions=4, targets=16)
    params = nn.meta.unbox(objective.init(jax.random.key(7), shape)[0])
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


@pytest.mark.parametrize(
    ("smaller", "larger", "new"),
    [
        (Mlm(BERT.model), BERT, {"pooler", "nsp_head"}),
        (Mlm(BERT.model), MLM_SBO, {"sbo_head"}),
        (BERT, MlmNspTopic(BERT.model), {"topic_head"}),
        (Mlm(BERT.model), PAIRS["structure"], {"pooler", "structure_head"}),
        (CausalLm(GPT2), CausalLm(dataclasses.replace(GPT2, tie_embeddings=False)), {"lm_head"}),
    ],
    ids=["pairs", "spans", "users", "structure", "causal_lm"],
)
def test_another_head_or_task_changes_no_other_initial_value(smaller, larger, new):
    before, after = initial(smaller), initial(larger)
    assert {path.split("'")[1] for path in after.keys() - before.keys()} == new
    assert all(np.array_equal(after[path], value) for path, value in before.items())


def test_parts_that_two_objectives_share_have_the_same_initial_values():
    pairs, structure = initial(BERT), initial(PAIRS["structure"])
    shared = [path for path in pairs if not path.startswith("['nsp_head']")]
    assert any("pooler" in path for path in shared)
    assert all(np.array_equal(structure[path], pairs[path]) for path in shared)


def test_parts_of_equal_shapes_start_from_different_values():
    kernels = [value for value in initial(BERT).values() if value.shape == (16, 16) and value.std()]
    assert len(kernels) > 1 and len({kernel.tobytes() for kernel in kernels}) == len(kernels)


def test_electra_discriminator_does_not_depend_on_its_generator():
    before, after = initial(ELECTRA), initial(dataclasses.replace(ELECTRA, generator_width=1.0))
    discriminator = [path for path in before if not path.startswith(("['generator']", "['mlm_head']"))]
    assert discriminator and all(np.array_equal(after[path], before[path]) for path in discriminator)
