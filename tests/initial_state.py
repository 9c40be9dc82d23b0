"""The state that a command trains from, without any training; as a program, `python initial_state.py FILE.npz WORDS...`."""

import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import jax
import numpy as np
import pytest

from bertfam import cli
from bertfam.training import loop
from bertfam.training.trainer import Trainer


class Stopped(BaseException):
    """Exception that ends a command as abruptly as a signal."""


def skip_initialisation(patch):
    """Have trainers make fresh states with draws by NumPy, without compiling the initialisation of each model.

    Matrices have BERT's deviation and depend on the run's seed, scales are ones, and other vectors are zeros.
    """

    def new_state(trainer, replaced=()):
        generator, abstract = np.random.default_rng(trainer.run.key_seed), trainer.abstract_state
        zeros = jax.tree.map(lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding), abstract)

        def initial(path, leaf):
            is_scale = path[-1].key == "scale"
            values = np.full(leaf.shape, is_scale) if is_scale or leaf.ndim < 2 else 0.02 * generator.normal(size=leaf.shape)
            return jax.device_put(values.astype(leaf.dtype), leaf.sharding)

        return trainer.with_params(zeros, jax.tree.map_with_path(initial, abstract.params))

    patch.setattr(Trainer, "new_state", new_state)


def initial_state(*words, then=lambda: None, initialise=True):
    """Run a command in this process until its training starts and call `then`; return what it printed and the state.

    Args:
      *words: words of the command.
      then: function to call.
      initialise: False for tests that look at no initial value of the model's own.
    """
    states = []

    def stop(trainer, state, *_, **__):
        states.append(jax.tree.map(np.array, state))
        then()
        raise Stopped

    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        patch.setattr(loop, "train", stop)
        if not initialise:
            skip_initialisation(patch)
        try:
            status = cli.main([*map(str, words)])
        except Stopped:
            return out.getvalue(), states[0]
    raise AssertionError(f"exit status {status}: {err.getvalue()}")


def leaves(tree):
    """Return the leaves of a tree by their names, which are those that they have in a checkpoint."""
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {re.sub(r"\.(\w+)", r"['\1']", jax.tree_util.keystr(path)): np.asarray(leaf) for path, leaf in paths}


if __name__ == "__main__":
    printed, state = initial_state(*sys.argv[2:])
    print(printed)
    np.savez(sys.argv[1], **leaves(state))
