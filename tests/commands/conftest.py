"""A small run, made once by the command line on real files: 24 steps, of which 12 have longer rows."""

import os
from contextlib import ExitStack

import pytest
import shared_programs
from command_line import Trained, bertfam, write_texts
from initial_state import skip_initialisation
from model_folders import CannotMount, disk
from once import once

RUN_FILE = """\
include "objectives/mlm_nsp.gin"
include "runs/defaults.gin"

TRAIN_STEPS = 12
EVAL_EVERY = 12
CHECKPOINT_EVERY = 5
BATCH_SIZE = 8
SEED = 3

Run.stages = (@short/Stage(), @long/Stage())
short/Stage.length = 16
short/Stage.steps = 12
long/Stage.length = 24
Run.log_every = 4
Run.keep_checkpoints = None
BertConfig.num_layers = 2
BertConfig.hidden_size = 16
BertConfig.num_heads = 2
BertConfig.feed_forward_size = 32
BertConfig.max_length = 24
LinearDecay.peak = 1e-2
LinearDecay.warmup_steps = 5
MODEL = @BertConfig()
"""


@pytest.fixture(scope="session", autouse=True)
def _shared_programs():
    with pytest.MonkeyPatch.context() as patch:
        shared_programs.share(patch)
        yield


@pytest.fixture(scope="module", autouse=True)
def initialisation():
    """Have runs in this process start from draws by NumPy; a file that compares initial values overrides this fixture."""
    with pytest.MonkeyPatch.context() as patch:
        skip_initialisation(patch)
        yield


@pytest.fixture(scope="session")
def compilations(tmp_path_factory):
    """Give all processes of the session one compilation cache of JAX, unless the environment names one."""
    with pytest.MonkeyPatch.context() as patch:
        if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
            directory = once(tmp_path_factory, "compilations", lambda folder: None)
            patch.setenv("JAX_COMPILATION_CACHE_DIR", str(directory))
            patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
        yield


@pytest.fixture(scope="session")
def trained(tmp_path_factory, compilations):
    """Train the small run, and return its `Trained`."""

    def make(folder):
        from bertfam import cli

        write_texts(folder / "text")
        (folder / "run.gin").write_text(RUN_FILE)
        for name, size in (("vocab", 300), ("other-vocab", 200)):
            assert cli.main(["vocab", f"--input={folder / 'text/train.txt'}", f"--size={size}", f"--output={folder / name}"]) == 0
        done = bertfam(*Trained(folder).pretrain(folder / "model"), IMPORT=1, MODULES=folder / "modules.json")
        (folder / "stdout.txt").write_text(done.stdout)
        (folder / "stderr.txt").write_text(done.stderr)
        assert done.returncode == 0, done.stderr

    return Trained(once(tmp_path_factory, "trained", make))


@pytest.fixture(scope="session")
def rewritten(trained, tmp_path_factory):
    """Return a folder with vocab/, 250 pieces of the held-out text, and cache/, the run's text in them."""

    def make(folder):
        from bertfam import cli

        train, held_out = (trained.folder / "text" / name for name in ("train.txt", "held-out.txt"))
        vocabulary = folder / "vocab"
        assert cli.main(["vocab", f"--input={held_out}", "--size=250", f"--output={vocabulary}"]) == 0
        text = [f"--input={train}", f"--validation_input={held_out}", f"--vocab={vocabulary}"]
        assert cli.main(["cache", *text, f"--output={folder / 'cache'}", "--processes=0"]) == 0

    return once(tmp_path_factory, "rewritten", make)


@pytest.fixture
def small_disk(tmp_path):
    """Return mount(megabytes), which returns a folder on a disk of its own."""
    with ExitStack() as mounted:

        def mount(megabytes):
            try:
                return mounted.enter_context(disk(tmp_path / f"disk{megabytes}", megabytes))
            except CannotMount as error:
                pytest.skip(str(error))

        yield mount
