"""Compilation without most optimizations, since loops of tiny models take much longer to compile than to run."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def fast_compilation():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
