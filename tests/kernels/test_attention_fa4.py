"""FlashAttention-4: the choice of it, its package's interface, and values and gradients by its own reference on CPUs."""

import inspect
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertfam.kernels.attention import fa4, hopper
from bertfam.kernels.attention.choice import choose
from bertfam.kernels.attention.interface import Inputs, Request
from bertfam.kernels.attention.patterns import CAUSAL, FULL, Window
from bertfam.kernels.attention.reference import Reference

VERSIONS = {"fa4-jax": "0.1.7", "nvidia-cutlass-dsl": "4.8.2", "jax": "0.11.2"}
GPU = Request("bfloat16", 4096, 64, platform="gpu", compute_capability=9.0)


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(fa4, "_version", VERSIONS.get)


@pytest.mark.parametrize(
    ("change", "chosen"),
    [
        ({}, True),
        ({"length": 2048}, True),
        ({"pattern": CAUSAL}, True),
        ({"packed": True}, False),
        ({"pattern": Window(64, 64)}, False),
        ({"bias": True}, False),
        ({"split": True}, False),
        ({"return_weights": True}, False),
        ({"dtype": "float32"}, False),
        ({"head_dim": 32}, False),
        ({"key_length": 5000, "pattern": CAUSAL}, False),
        ({"compute_capability": 8.0}, False),
        ({"compute_capability": 10.0}, False),
        ({"platform": "cpu"}, False),
    ],
    ids=str,
)
def test_long_unpacked_rows_are_computed_by_it(installed, change, chosen):
    backend, _ = choose(replace(GPU, **change))
    assert (backend.name == "fa4") is chosen


@pytest.mark.parametrize(("length", "pattern"), [(1024, FULL), (2048, CAUSAL)])
def test_reproducible_kernels_are_preferred_within_15_percent(installed, monkeypatch, length, pattern):
    monkeypatch.setattr(hopper, "_JAX_FROM", (0,))
    monkeypatch.setattr(hopper, "_JAX_BEFORE", (99,))
    request = replace(GPU, length=length, pattern=pattern)
    assert choose(request)[0].name == "hopper" and choose(replace(request, length=2 * length))[0].name == "fa4"
    assert fa4.FlashAttention4().cost(request) < hopper.Hopper().cost(request)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"fa4-jax": None}, "fa4-jax is not installed (the extra bertfam[cuda])"),
        ({"fa4-jax": "0.2.0"}, "fa4-jax is 0.2.0, not ==0.1.*"),
        ({"nvidia-cutlass-dsl": "4.9.0"}, "nvidia-cutlass-dsl is 4.9.0, not >=4.8.1,<4.9"),
        ({"jax": "0.13.0"}, "jax is 0.13.0, not >=0.11.2,<0.13"),
    ],
)
def test_a_missing_package_or_another_version_only_costs_speed(monkeypatch, changed, reason):
    monkeypatch.setattr(fa4, "_version", (VERSIONS | changed).get)
    backend, text = choose(GPU)
    assert backend.name != "fa4" and reason in text


def test_a_package_that_cannot_be_imported_only_costs_speed(installed, monkeypatch):
    def fail(name):
        raise RuntimeError("No CTK flavor installed")

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(fa4.importlib, "import_module", fail)
    monkeypatch.setattr(fa4, "_import_refusals", fa4._import_refusals.__wrapped__)
    backend, text = choose(GPU)
    assert backend.name != "fa4" and "fa4-jax cannot be imported (RuntimeError: No CTK flavor installed)" in text


def test_the_package_has_the_interface_that_is_called():
    """A version with another interface fails here, and must be left out by `_VERSIONS`."""
    fa4_jax = pytest.importorskip("fa4_jax")
    parameters = inspect.signature(fa4_jax.flash_attn_varlen).parameters
    assert list(parameters)[:5] == ["q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"]
    assert {"seqused_q", "seqused_k", "causal", "scale", "defined_padding"} <= parameters.keys()


@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize(("pattern", "keys"), [(FULL, 40), (FULL, 56), (CAUSAL, 40)])
def test_values_and_gradients_match_the_reference(pattern, keys, key_heads):
    pytest.importorskip("fa4_jax")
    random = np.random.default_rng(0)

    def draw(*shape):
        return jnp.asarray(random.standard_normal(shape, np.float32))

    query, gradient = draw(3, 40, 4, 64), draw(3, 40, 4, 64)
    key, value = draw(3, keys, key_heads, 64), draw(3, keys, key_heads, 64)
    ids, key_ids = ((np.arange(length) < np.array([[length], [13], [0]])).astype(np.int32) for length in (40, keys))
    request = replace(GPU, length=40, pattern=pattern, key_length=None if keys == 40 else keys)

    def outcome(backend):
        def attend(query, key, value):
            out = backend.run(Inputs(query, key, value, ids, key_ids), request)[0]
            return jnp.where(ids[:, :, None, None] > 0, out, 0)

        out, pull = jax.vjp(jax.jit(attend), query, key, value)
        return (out, *pull(gradient))

    for actual, expected in zip(outcome(fa4.FlashAttention4()), outcome(Reference()), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-5)
