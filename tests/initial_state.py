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


class Stopped(BaseException):
    """Exception that ends a command as abruptly as a signal."""


def initial_state(*words, then=lambda: None):
    """Run a command in this process until its training starts and call `then`; return what it printed and the state."""
    states = []

    def stop(trainer, state, *_):
        states.append(jax.tree.map(np.array, state))
        then()
        raise Stopped

    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        patch.setattr(loop, "train", stop)
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
