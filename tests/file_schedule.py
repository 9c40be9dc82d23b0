"""Order in which the processes of pytest-xdist import the files of the tests, and in which they run them."""

import pytest
from typing_extensions import override
from xdist.scheduler import LoadFileScheduling

# One process runs them all, so that the others need no TensorFlow, whose import takes as long as many of the tests.
TENSORFLOW = ("tests/data/seqio_tasks/", "tests/commands/test_seqio_mixture_run.py", "tests/commands/test_text_to_text_run.py")
# Folders without a file that takes more than a few seconds. They come last, so that all processes finish at about the same time.
SHORT = ("tests/config/", "tests/corruption/", "tests/data/corpora/", "tests/data/rows/", "tests/data/vocabularies/")


class FileSchedule(LoadFileScheduling):
    """Schedule that gives a file, or the files of TensorFlow, to one process."""

    @override
    def _split_scope(self, nodeid):
        return "TensorFlow" if nodeid.startswith(TENSORFLOW) else super()._split_scope(nodeid)


class SharedFolder(pytest.Dir):
    """Folder whose files each process imports from another one on.

    The first import of a file rewrites its asserts, which takes as long as everything else in it, and writes the result for the
    other processes.
    """

    @override
    def collect(self):
        nodes, worker = list(super().collect()), self.config.workerinput
        start = len(nodes) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        return [*nodes[start:], *nodes[:start]]


def sort(items):
    """Sort the tests by their files, those of the short folders last."""
    items.sort(key=lambda item: (item.nodeid.startswith(SHORT), item.path))
