"""Makes sure that a run has its token cache and its vocabulary before anything is compiled."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bertfam.config import Config
from bertfam.data.cache import TokenCache
from bertfam.data.vocabularies import WordPiece
from bertfam.errors import UserError
from bertfam.data.text_data import TextData


def token_cache(config: Config, data: TextData, directory: Path) -> TokenCache:
    """Opens the token cache, after building it in a child process if it is missing.

    The child keeps TensorFlow, which a seqio task may need, out of the training process.

    Raises:
      UserError: where the cache is missing and nothing does say what to build it from.
      SystemExit: where the child refuses its input, which it has said by then.
    """
    if not directory.exists():
        check_buildable(data)
        _build_in_child(config, directory)
    return TokenCache(directory)


def check_buildable(data: TextData) -> None:
    """Raises UserError where there is nothing to build a token cache from."""
    if data.corpus is None:
        raise UserError("no text: give --input=GLOB, --task=NAME, or --cache_dir=DIR of a token cache that is built already")
    if data.vocabulary is None:
        raise UserError("no vocabulary: train one with `bertfam vocab --output=DIR` and give it with --vocab=DIR")


def _build_in_child(config: Config, directory: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        gin_file = Path(scratch) / "config.gin"
        gin_file.write_text(config.text())
        command = [sys.executable, "-m", "bertfam", "cache", f"--gin_file={gin_file}", f"--output={directory}"]
        # The child writes its progress, or its one line of error, to our stderr.
        status = subprocess.run(command, env=_environment()).returncode
    if status:
        raise SystemExit(status)


def _environment() -> dict[str, str]:
    """The child's environment: the accelerator stays with the parent, and modules are found alike."""
    return os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def check_vocabulary(data: TextData, model_dir: Path) -> None:
    """Refuses a vocabulary that is not the one that the run began with, or that cannot be read."""
    if data.vocabulary is None:
        return
    given, began_with = WordPiece.load(data.vocabulary), model_dir / "vocab"
    if began_with.exists() and WordPiece.load(began_with).fingerprint != given.fingerprint:
        raise UserError(
            f"{data.vocabulary} is not the vocabulary that {model_dir} began with; leave --vocab out, or use another --model_dir"
        )
