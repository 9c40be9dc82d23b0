"""A ModernBERT with all of its arithmetic in float64, in a process of its own: FOLDER INPUTS.npz OUTPUTS.npz."""

import dataclasses
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np

# Before anything of bertfam is imported: what it computes in float32 whatever its inputs are (logits, softmax, norms, angles).
jax.config.update("jax_enable_x64", True)
jnp.float32 = jnp.float64

import parity  # noqa: E402

from bertfam.interop import huggingface  # noqa: E402
from bertfam.kernels import attention  # noqa: E402
from bertfam.layers.positions import rotary  # noqa: E402

if __name__ == "__main__":
    folder, inputs, outputs = sys.argv[1:]
    attention.REFERENCE = dataclasses.replace(attention.REFERENCE, dtypes=("float64",))
    rotary.np = types.SimpleNamespace(arange=np.arange, float32=np.float64)
    config, params, _ = huggingface.read(folder)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    with np.load(inputs) as given:
        found = parity.ours(config, params, dict(given), mlm=parity.masked_lm(config))
    assert {str(value.dtype) for value in found.values()} == {"float64"}
    np.savez(outputs, **found)
