"""Vocabularies learnt in separate processes, with other hashes of strings and the texts in another order."""

import os
import subprocess
import sys

CODE = """\
import random, sys
texts = [' '.join('abcdefgh'[i % 8] + 'xyzw'[i % 4] + 'ab'[j % 2] for j in range(i)) for i in range(1, 40)]
random.Random(int(sys.argv[1])).shuffle(texts)
"""


def learn_in_processes(learn, seeds):
    """Run the code `learn`, which can use `texts`, in one process for each seed, and return the distinct outputs."""
    return {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", CODE + learn, seed],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in seeds
    }  # fmt: skip
