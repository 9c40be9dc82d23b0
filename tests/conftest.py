"""Fixtures of a small real text: the language reference that comes with Python, its vocabulary and its token cache."""

import gc
import os
import pydoc_data.topics
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from types import SimpleNamespace

import fake_bucket
import fork_server
import jax
import numpy as np
import pytest
import xla

from bertfam import cli
from bertfam.data.corpora.corpus import Corpus
from bertfam.data.corpora.sentences import split_sentences
from bertfam.data.token_cache import build_process
from bertfam.data.token_cache.builder import build
from bertfam.data.token_cache.cache import TokenCache
from bertfam.data.vocabularies.wordpiece import WordPiece
from bertfam.interop import huggingface
from bertfam.models.bert import BertConfig

xla.set_fast_tracing()
xla.set_fast_compilation()
# Tracing makes many objects, nearly all short-lived: with the default threshold the collector walks the whole heap too often.
gc.set_threshold(100_000, 50, 1000)
# A test may run the program in this process, which must not end with it.
cli.QuickExit = SimpleNamespace
# For torch, which is imported later: on tensors as small as those of the tests its threads mostly wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Return the schedule of --dist=loadfile."""
    if config.getoption("dist") != "loadfile":
        return None
    from file_schedule import FileSchedule

    return FileSchedule(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collect_directory(path, parent):
    """Share the first import of files between the processes of pytest-xdist."""
    if not hasattr(parent.config, "workerinput"):
        return None
    from file_schedule import SharedFolder

    return SharedFolder.from_parent(parent, path=path)


def pytest_collection_modifyitems(config, items):
    """Give all processes of pytest-xdist the same order of tests."""
    if hasattr(config, "workerinput"):
        import file_schedule

        file_schedule.sort(items)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """Exit a process of pytest-xdist at once, as it has reported everything.

    Its ordinary end frees gigabytes of traced programs: whole sessions ended 11 s after their last test.
    """
    if hasattr(config, "workerinput"):
        os._exit(0)


@dataclass(frozen=True)
class LanguageReference(Corpus):
    """Corpus whose documents are the topics of `help()`: about 75 for training, 5 held out, 90,000 words."""

    def texts(self, split):
        for number, name in enumerate(sorted(pydoc_data.topics.topics)):
            if (number % 16 == 15) == (split == "validation"):
                yield [" ".join(text.split()) for text in pydoc_data.topics.topics[name].split("\n\n")]

    def sentences(self, lines):
        return [sentence for line in lines for sentence in split_sentences(line)]

    def fingerprint(self):
        return {"kind": "language_reference"}


@pytest.fixture(scope="session", autouse=True)
def _fork_servers():
    yield
    fork_server.stop()


@pytest.fixture(scope="session")
def corpus():
    return LanguageReference()


@pytest.fixture(scope="session")
def vocabulary(corpus):
    return WordPiece.train((sentence for document in corpus.documents("train") for sentence in document), size=2000)


@pytest.fixture(scope="session")
def cache_dir(corpus, vocabulary, tmp_path_factory):
    return build({"text": corpus}, vocabulary, tmp_path_factory.mktemp("reference") / "cache").directory


@pytest.fixture(scope="session")
def cache(cache_dir):
    return TokenCache(cache_dir)


@pytest.fixture(scope="session")
def tokens(vocabulary):
    return vocabulary.token_ids


@pytest.fixture(scope="session")
def bucket(tmp_path_factory):
    """Yield the address of a bucket on a server of this session, which has its own folder of local copies."""
    with fake_bucket.serve() as environment, pytest.MonkeyPatch.context() as patch:
        environment |= {"BERTFAM_CACHE": str(tmp_path_factory.mktemp("copies"))}
        # Variables that bertfam sets are reset at the end.
        environment |= {"EPATH_USE_TF": "", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
        for name, value in environment.items():
            patch.setenv(name, value)
        yield f"gs://{fake_bucket.BUCKET}"


@pytest.fixture(scope="session")
def random_model(vocabulary, tmp_path_factory):
    """Return a Hugging Face folder of a random model."""
    root = tmp_path_factory.mktemp("random")
    config = BertConfig(
        vocab_size=vocabulary.size,
        num_layers=2,
        hidden_size=32,
        num_heads=2,
        feed_forward_size=64,
        max_length=64,
        dropout_rate=0.0,  # which would take a quarter of the time to compile an update of fine-tuning
        attention_dropout_rate=0.0,
    )
    generator = np.random.default_rng(0)
    shapes = huggingface.shapes_of(config, frozenset({"encoder", "pooler", "mlm_head", "nsp_head"}))
    params = jax.tree.map(lambda leaf: 0.3 * generator.standard_normal(leaf.shape, np.float32), shapes)
    vocabulary.save(root / "tokenizer", model_max_length=config.max_length)
    huggingface.write(root / "model", config, params, tokenizer_files=sorted((root / "tokenizer").iterdir()))
    return root / "model"


@pytest.fixture(scope="module")
def caches_in_process():
    """Have the commands of this process build token caches in it, and not in a child process, which imports all modules again."""

    def run(command, **options):
        with open(os.dup(2), "w") as error, redirect_stdout(StringIO()), redirect_stderr(error):
            return SimpleNamespace(returncode=cli.main([*command[command.index("bertfam") + 1 :], "--processes=0"]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_process, "subprocess", SimpleNamespace(run=run, DEVNULL=None))
        yield
