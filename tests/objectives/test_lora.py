"""LoRA: where adapters are, what they compute, and what is trained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from gradients import random_params
from test_frozen import HEAD, MODEL, batch_of, flat

from bertfam.errors import UserError
from bertfam.kernels import rows
from bertfam.objectives.fine_tuning.lora import ADAPTERS, Lora
from bertfam.objectives.fine_tuning.objective import FineTuning
from bertfam.training.stages.phases import Phase
from bertfam.training.state import TrainState
from bertfam.training.step import make_gradient

RANK, ALPHA = 3, 6.0
OBJECTIVE, WHOLE = FineTuning(MODEL, HEAD, lora=Lora(RANK, ALPHA)), FineTuning(MODEL, HEAD)


def outputs(objective, params):
    return np.asarray(jax.jit(lambda rows: objective.outputs(params, rows, key=None, train=False))(batch_of()))


def merged_by_hand(params):
    """Return the encoder's parameters with W + alpha / r A B of each layer in the place of its kernel, in float64."""
    merged, factors = flat(params["encoder"]), flat(params[ADAPTERS]["encoder"])
    for where in {path.rpartition("/")[0] for path in factors}:
        kernel, first, second = merged[f"{where}/kernel"], factors[f"{where}/adapter_in"], factors[f"{where}/adapter_out"]
        layers = [
            np.float64(own)
            + ALPHA / RANK * (np.float64(a).reshape(-1, RANK) @ np.float64(b).reshape(RANK, -1)).reshape(own.shape)
            for own, a, b in zip(kernel, first, second, strict=True)
        ]
        merged[f"{where}/kernel"] = np.stack(layers)
    return merged


def test_every_kernel_of_the_layers_has_an_adapter_and_the_network_starts_unchanged():
    base = random_params(WHOLE)
    shapes = jax.eval_shape(lambda key: WHOLE.init(key, tiny.SHAPE)[0], jax.random.key(0))
    boxed = {"encoder": shapes["encoder"]}
    initial = base | {ADAPTERS: jax.device_get(nn.meta.unbox(OBJECTIVE.lora.init(jax.random.key(0), boxed)))}
    adapters, kernels = flat(initial[ADAPTERS]["encoder"]), flat(base["encoder"])
    adapted = {path for path in kernels if "layers/" in path and path.endswith("/kernel")}
    assert len(adapted) == 6 and {path.rpartition("/")[0] for path in adapters} == {path.rpartition("/")[0] for path in adapted}
    for path, value in adapters.items():
        if path.endswith("adapter_out"):
            assert not value.any()
        else:
            assert value.std() == pytest.approx((value[0].size / RANK) ** -0.5, rel=0.3)
    np.testing.assert_array_equal(outputs(OBJECTIVE, initial), outputs(WHOLE, base))


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_adapters_compute_the_products_of_the_merged_kernels(device, monkeypatch):
    """CPUs multiply by each kernel on its own, other devices by all at once."""
    monkeypatch.setattr(rows, "join_products", lambda dtype: device == "gpu")
    params = random_params(OBJECTIVE)
    merged = OBJECTIVE.split(params)["encoder"]
    assert ADAPTERS not in merged
    for path, value in merged_by_hand(params).items():
        np.testing.assert_allclose(flat(merged["encoder"])[path], value, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(outputs(OBJECTIVE, params), outputs(WHOLE, merged), rtol=1e-4, atol=1e-4)


def gradient_of(objective, params):
    state = TrainState(jnp.zeros((), jnp.int32), params, {}, {}, {}, {}, jnp.zeros((), jnp.int32))
    return jax.device_get(jax.jit(make_gradient(Phase.of(objective), microbatches=1))(state, batch_of(), tiny.SEED)[0])


def test_adapters_and_head_have_the_gradient_of_the_merged_kernels():
    params = random_params(OBJECTIVE)
    gradient, of_whole = gradient_of(OBJECTIVE, params), gradient_of(WHOLE, OBJECTIVE.split(params)["encoder"])
    assert gradient.keys() == {"pooler", "classifier", ADAPTERS}
    for path, value in flat({name: gradient[name] for name in ("pooler", "classifier")}).items():
        np.testing.assert_allclose(value, flat(of_whole)[path], rtol=1e-3, atol=1e-5)
    factors, own = flat(params[ADAPTERS]["encoder"]), flat(gradient[ADAPTERS]["encoder"])
    for where in {path.rpartition("/")[0] for path in factors}:
        first, second = factors[f"{where}/adapter_in"], factors[f"{where}/adapter_out"]
        for layer, kernel in enumerate(flat(of_whole["encoder"])[f"{where}/kernel"]):
            a, b = first[layer].reshape(-1, RANK), second[layer].reshape(RANK, -1)
            g = kernel.reshape(len(a), -1)
            for name, expected in (("adapter_in", g @ b.T), ("adapter_out", a.T @ g)):
                actual = own[f"{where}/{name}"][layer].reshape(expected.shape)
                np.testing.assert_allclose(actual, ALPHA / RANK * expected, rtol=1e-3, atol=1e-5)


def test_ranks_scales_and_clashes_are_refused():
    for wrong, named in ((lambda: Lora(0), r"Lora\.rank is 0"), (lambda: Lora(8, 0.0), r"Lora\.alpha is 0")):
        with pytest.raises(UserError, match=named):
            wrong()
    with pytest.raises(UserError, match=r"FineTuning\.freeze and FineTuning\.lora"):
        FineTuning(MODEL, HEAD, freeze="encoder", lora=Lora())
