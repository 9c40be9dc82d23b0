"""An encoder-decoder with all of its arithmetic in float64, in a process of its own: FOLDER INPUTS.npz OUTPUTS.npz."""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np

# Before anything of bertfam is imported: what it computes in float32 whatever its inputs are (logits, softmax, norms).
jax.config.update("jax_enable_x64", True)
jnp.float32 = jnp.float64

import encoder_decoder_parity as pairs  # noqa: E402

from bertfam.interop import huggingface  # noqa: E402
from bertfam.kernels import attention  # noqa: E402

if __name__ == "__main__":
    folder, inputs, outputs = sys.argv[1:]
    attention.REFERENCE = dataclasses.replace(attention.REFERENCE, dtypes=("float64",))
    config, params, _ = huggingface.read(folder)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    with np.load(inputs) as given:
        rows = {name: tuple(given[name]) for name in ("encoder", "decoder")}
    found = pairs.ours(config, params, rows)
    assert {str(value.dtype) for value in found.values()} == {"float64"}
    np.savez(outputs, **found)
