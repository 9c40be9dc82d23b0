"""Updates of a layer's matrix are those of the optimizers of torch and transformers (contract 4)."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from bertfam.training.optimizers import Adafactor, AdamW, Muon
from bertfam.training.schedules import ConstantRate, InverseSquareRoot

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

RATE, STEPS = 0.02, 5
FIXED = ConstantRate(RATE, warmup_steps=0)
# One layer's [embed, heads, head_dim], which torch keeps as [heads * head_dim, embed].
SHAPE, AXES = (6, 2, 4), ("embed", "heads", "head_dim")


def matrices(seed):
    return np.random.default_rng(seed).standard_normal((2, *SHAPE)).astype(np.float32)


def jax_updates(config):
    """Yield the two layers after each update."""
    params = {"layers": {"kernel": jnp.asarray(matrices(0))}}
    boxed = {"layers": {"kernel": nn.LogicallyPartitioned(params["layers"]["kernel"], ("layers", *AXES))}}
    optimizer = config.build(STEPS, boxed)
    state = nn.meta.unbox(optimizer.init(boxed))
    for step in range(STEPS):
        updates, state = optimizer.update({"layers": {"kernel": matrices(step + 1)}}, state, params, step=step)
        params = optax.apply_updates(params, updates)
        yield np.asarray(params["layers"]["kernel"])


def torch_updates(make):
    """Yield the same two layers with an optimizer of torch, for which each layer is a parameter."""

    def to_torch(matrix):
        return torch.from_numpy(matrix.reshape(SHAPE[0], -1).T.copy())

    layers = [torch.nn.Parameter(to_torch(matrix)) for matrix in matrices(0)]
    optimizer = make(layers)
    for step in range(STEPS):
        for layer, gradient in zip(layers, matrices(step + 1), strict=True):
            layer.grad = to_torch(gradient)
        optimizer.step()
        yield np.stack([layer.detach().numpy().T.reshape(SHAPE) for layer in layers])


@pytest.mark.parametrize(
    ("config", "make", "tolerance"),
    [
        (
            AdamW(FIXED, weight_decay=0.1, clip_norm=None),
            lambda layers: torch.optim.AdamW(layers, lr=RATE, eps=1e-6, weight_decay=0.1),
            1e-5,
        ),
        (
            Adafactor(InverseSquareRoot(), min_size_to_factor=2),
            lambda layers: transformers.Adafactor(layers, relative_step=True, scale_parameter=True),
            1e-5,
        ),
        (
            Adafactor(FIXED, min_size_to_factor=2, scale_by_parameter=False, weight_decay=0.1, clipping_threshold=0.5),
            lambda layers: transformers.Adafactor(
                layers, lr=RATE, relative_step=False, scale_parameter=False, weight_decay=0.1, clip_threshold=0.5
            ),
            1e-5,
        ),
        # torch iterates in bfloat16.
        (
            Muon(FIXED, weight_decay=0.1, clip_norm=None),
            lambda layers: torch.optim.Muon(layers, lr=RATE, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
            0.02 * STEPS * RATE,
        ),
        (
            Muon(FIXED, weight_decay=0.1, clip_norm=None, scale="original"),
            lambda layers: torch.optim.Muon(layers, lr=RATE, weight_decay=0.1),
            0.02 * STEPS * RATE,
        ),
    ],
)
def test_updates_match_torch(config, make, tolerance):
    for updated, expected in zip(jax_updates(config), torch_updates(make), strict=True):
        np.testing.assert_allclose(updated, expected, rtol=1e-5, atol=tolerance)
    assert np.abs(updated - matrices(0)).max() > RATE / 2
