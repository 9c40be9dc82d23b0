"""Order in which the processes of pytest-xdist take the files of the tests."""

from xdist.scheduler import LoadFileScheduling

# One process runs them all, so that the others need no TensorFlow, whose import takes as long as many of the tests.
TENSORFLOW = ("tests/data/seqio_tasks/", "tests/commands/test_seqio_mixture_run.py", "tests/commands/test_text_to_text_run.py")


class FileSchedule(LoadFileScheduling):
    """Schedule that gives a file, or the files of TensorFlow, to one process."""

    def _split_scope(self, nodeid):
        return "TensorFlow" if nodeid.startswith(TENSORFLOW) else super()._split_scope(nodeid)
