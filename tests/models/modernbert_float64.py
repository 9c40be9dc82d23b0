"""A ModernBERT with all arithmetic in float64, in a process of its own: INPUTS.npz FOLDER; writes FOLDER/outputs.npz."""

import sys
import types

import jax
import jax.numpy as jnp
import numpy as np

# Set before bertfam is imported, which computes logits, softmax, norms and angles in float32 for inputs of any dtype.
jax.config.update("jax_enable_x64", True)
jnp.float32 = jnp.float64

import parity  # noqa: E402

from bertfam.interop import huggingface  # noqa: E402
from bertfam.kernels.attention.choice import BACKENDS  # noqa: E402
from bertfam.layers.positions import rotary  # noqa: E402

if __name__ == "__main__":
    inputs, folder = sys.argv[1:]
    for name in set(BACKENDS) - {"reference"}:  # the others compute in float32
        del BACKENDS[name]
    rotary.np = types.SimpleNamespace(arange=np.arange, float32=np.float64)
    with np.load(inputs) as arrays:
        rows = dict(arrays)
    config, params, _ = huggingface.read(folder)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    results = parity.jax_outputs(config, params, rows, mlm=parity.masked_lm(config))
    assert {str(value.dtype) for value in results.values()} == {"float64"}
    np.savez(f"{folder}/outputs.npz", **results)
