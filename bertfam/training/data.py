"""Token cache and vocabulary of a run, checked and built before anything is compiled."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertfam.config import Config
from bertfam.data import vocabularies
from bertfam.data.rows.batches import Batches
from bertfam.data.text_data import HeldOut, TextData
from bertfam.data.token_cache.build_folder import clear_finished
from bertfam.data.token_cache.builder import check_sources
from bertfam.data.token_cache.cache import TokenCache, difference
from bertfam.errors import UserError
from bertfam.storage.files import is_used, read_json
from bertfam.storage.paths import to_path
from bertfam.training.run import Run
from bertfam.training.schedules import InverseSquareRoot


def token_cache(config: Config, data: TextData, directory: Path, named: TextData) -> TokenCache:
    """Open the token cache, after building it in a child process if it is missing.

    The child keeps TensorFlow, which a seqio task may need, out of the training process.

    Args:
      config: what the child is told.
      data: the run's.
      directory: of the cache.
      named: `data` without the corpus and vocabulary that this command's own flags do not name: a cache that is there may
        be of other text than a run file says by default, but not of other text than the user names.

    Raises:
      UserError: where the cache is missing and nothing does say what to build it from, or is of something else than named.
      SystemExit: where the child refuses its input, which it has said by then.
    """
    if is_used(directory):
        clear_finished(directory)
    if not is_used(directory):
        check_buildable(data)
        _run_child(config, directory)
    elif named.reads_seqio:
        # Only the child may read the task; it compares, and builds nothing.
        _run_child(config, directory, f"--vocab={named.vocabulary or TokenCache(directory).vocabulary_directory}")
    else:
        check_named(directory, named)
    return TokenCache(directory)


def check_named(directory: Path, named: TextData) -> None:
    """Raise UserError if the token cache that is there is of other text or another vocabulary than the user names."""
    vocabulary = vocabularies.load(named.vocabulary) if named.vocabulary else None
    check_sources(TokenCache(directory), named.corpora, vocabulary)


def check_buildable(data: TextData) -> None:
    """Raise UserError if there is nothing to build a token cache from."""
    if data.corpus is None:
        raise UserError("no text: give --input=GLOB, --task=NAME, or --cache_dir=DIR of a token cache that is built already")
    if data.vocabulary is None:
        raise UserError("no vocabulary: train one with `bertfam vocab --output=DIR` and give it with --vocab=DIR")
    data.check_marks()


def _run_child(config: Config, directory: Path, *flags: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        gin_file = Path(scratch) / "config.gin"
        gin_file.write_text(config.text())
        command = [sys.executable, "-m", "bertfam", "cache", f"--gin_file={gin_file}", f"--output={directory}", *flags]
        # The child writes its progress, or its one line of error, to our stderr; stdout is for what the parent's command gives.
        status = subprocess.run(command, env=_environment(), stdout=subprocess.DEVNULL).returncode
    if status < 0:
        raise UserError(f"building the token cache was killed by signal {-status}, perhaps for want of memory")
    if status:
        raise SystemExit(status)


def _environment() -> dict[str, str]:
    """Return the child's environment: the accelerator stays with the parent, and modules are found alike."""
    return os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def warnings(run: Run, sources: Sequence[Batches], evaluations: Sequence[HeldOut | None]) -> list[str]:
    """Return warnings about a run's text and schedule, a line each."""
    lines = [line for source in sources for line in source.sequence.warnings]
    return lines + schedule_warnings(run) + evaluation_warnings(run, all(evaluations))


def schedule_warnings(run: Run) -> list[str]:
    """Return warnings about a run's schedule."""
    schedule, total = run.optimizer.schedule, run.total_steps
    warmup = schedule.warmup_steps
    if warmup >= total > 1 and not (isinstance(schedule, InverseSquareRoot) and schedule.warmup == "flat"):
        return [
            f"{type(schedule).__name__}.warmup_steps {warmup:,} is not less than the {total:,} steps: the peak is never reached"
        ]
    return []


def evaluation_warnings(run: Run, has_held_out: bool) -> list[str]:
    """Return warnings about the text that a run evaluates on; `has_held_out`: there is enough of it for a row."""
    lacking = [what for what, every in (("evaluated", run.eval_every), ("sampled", run.sample_every)) if every]
    if lacking and not has_held_out:
        what = " or ".join(lacking)
        return [f"the text has too few held-out documents: nothing is {what}; give some with --validation_input"]
    return []


def vocabulary_folder(data: TextData, directory: Path) -> Path:
    """Return the vocabulary of the token cache in `directory`, or where there is none yet, of the one that will be built.

    Raises:
      UserError: where there is neither a cache nor what to build it from.
    """
    if is_used(directory):
        return TokenCache(directory).vocabulary_directory
    check_buildable(data)
    return to_path(str(data.vocabulary))


def check_vocabulary(given: str | Path, model_dir: Path) -> None:
    """Raise UserError unless the vocabulary is that of the model in MODEL_DIR."""
    if vocabularies.load(given).fingerprint != vocabularies.load(model_dir / "vocab").fingerprint:
        raise UserError(f"{given} is not the vocabulary that {model_dir} began with; leave it out, or use another --model_dir")


def check_text(found: dict[str, Any], what: str, model_dir: Path) -> None:
    """Refuses `what`, whose fingerprint is `found`, where it is other text than the run in MODEL_DIR began with."""
    path = model_dir / "fingerprint.json"
    if not path.is_file():
        raise UserError(f"{path} is missing, which says what text this run began with; put it back, or use another --model_dir")
    began_with = read_json(path)
    if began_with != found:
        raise UserError(
            f"{what} is not the text that {model_dir} began with ({difference(began_with, found)}); a run keeps its text: leave "
            "the flag out, or use another --model_dir"
        )
