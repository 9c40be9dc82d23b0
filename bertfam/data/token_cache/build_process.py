"""Token cache of a run, built by a child process where it is missing.

The child keeps TensorFlow, which a seqio task may need, out of the training process.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bertfam.config import Config
from bertfam.data import vocabularies
from bertfam.data.seqio_tasks.corpus import SeqioTask
from bertfam.data.text_data import TextData
from bertfam.data.token_cache.build_folder import clear_finished
from bertfam.data.token_cache.builder import check_sources
from bertfam.data.token_cache.cache import TokenCache
from bertfam.errors import UserError
from bertfam.storage.files import is_used
from bertfam.storage.paths import to_path
from bertfam.subprocesses import command


def open_token_cache(config: Config, data: TextData, directory: Path, named: TextData) -> TokenCache:
    """Open the token cache, after building it in a child process if it is missing.

    Args:
      config: the configuration of the run, of which the child gets the part that `data` is built from.
      data: the text of the run.
      directory: the folder of the cache.
      named: `data` with only the corpus and the vocabulary that this command's own flags name. An existing cache may be of other
        text than the defaults of a run file, but not of other text than the user names.

    Raises:
      UserError: if the cache is missing and there is nothing to build it from, or it is not the cache of `named`.
      SystemExit: if the child rejects its input; it has printed the reason by then.
    """
    if is_used(directory):
        clear_finished(directory)
    if not is_used(directory):
        check_buildable(data)
        _run_child(config, data, directory)
    elif named.reads_seqio:
        # Only a child may read the task; with an existing cache it compares the fingerprints and builds nothing.
        _run_child(config, data, directory, f"--vocab={named.vocabulary or TokenCache(directory).vocabulary_directory}")
    else:
        check_named(directory, named)
    return TokenCache(directory)


def check_named(directory: Path, named: TextData) -> None:
    """Raise UserError if the existing token cache is of other text or another vocabulary than the user names."""
    vocabulary = vocabularies.load(named.vocabulary) if named.vocabulary else None
    check_sources(TokenCache(directory), named.corpora, vocabulary)


def check_buildable(data: TextData) -> None:
    """Raise UserError if there is nothing to build a token cache from."""
    missing = f"; there is no token cache at {data.cache_dir}" if data.cache_dir else ""
    if data.corpus is None:
        raise UserError(
            f"no text: give --input=GLOB, --task=NAME, or --cache_dir=DIR of a token cache that is built already{missing}"
        )
    if data.vocabulary is None:
        raise UserError(f"no vocabulary: train one with `bertfam vocab --output=DIR` and give it with --vocab=DIR{missing}")
    data.check_marks()


def vocabulary_folder(data: TextData, directory: Path) -> Path:
    """Return the vocabulary of the token cache in `directory`, or of the cache that will be built there.

    Raises:
      UserError: if there is neither a cache nor anything to build it from.
    """
    if is_used(directory):
        return TokenCache(directory).vocabulary_directory
    check_buildable(data)
    return to_path(str(data.vocabulary))


def _run_child(config: Config, data: TextData, directory: Path, *flags: str) -> None:
    for corpus in data.corpora.values():
        if isinstance(corpus.bare, SeqioTask):
            corpus.bare.check_trusted()  # the child cannot tell who named a module
    with tempfile.TemporaryDirectory() as scratch:
        gin_file = Path(scratch) / "config.gin"
        # The bindings of the model and the optimizer are left out, as their modules import JAX.
        gin_file.write_text(config.restricted("TextData").text(), encoding="utf-8")
        words = command("bertfam", "cache", f"--gin_file={gin_file}", f"--output={directory}", *flags)
        # The child writes its progress, or its one line of error, to stderr; stdout is for the output of the parent's command.
        status = subprocess.run(words, env=_environment(), stdout=subprocess.DEVNULL).returncode
    if status < 0:
        raise UserError(f"building the token cache was killed by signal {-status}, perhaps because memory ran out")
    if status:
        raise SystemExit(status)


def _environment() -> dict[str, str]:
    """Return the child's environment: the accelerator stays with the parent, and the import path is the same."""
    return os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
