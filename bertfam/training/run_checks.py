"""Warnings about a run before training, and checks that a resumed run keeps its text and vocabulary."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertfam.data import vocabularies
from bertfam.data.rows.batches import Batches
from bertfam.data.text_data import LATEST_ROWS, HeldOut
from bertfam.data.token_cache.cache import difference
from bertfam.errors import UserError
from bertfam.plurals import plural
from bertfam.storage.untrusted import read_json
from bertfam.training.run import Run

_LEAST_DECAY = 0.5


def run_warnings(run: Run, sources: Sequence[Batches], evaluations: Sequence[HeldOut | None]) -> list[str]:
    """Return warnings about a run's text and schedule, a line each."""
    # Stages over the same rows have the same warnings.
    lines = list(dict.fromkeys(line for source in sources for line in source.sequence.warnings))
    if run.data.rows_version == 1:  # versions 2 and 3 differ from later ones for large corpora and packed rows alone
        lines.append(
            f"TextData.rows_version is {run.data.rows_version}: this run keeps the rows it began with; a new --model_dir has "
            f"those of version {LATEST_ROWS} (see CHANGELOG.md)"
        )
    return lines + schedule_warnings(run) + evaluation_warnings(run, all(evaluations))


def schedule_warnings(run: Run) -> list[str]:
    """Return warnings about a run's schedule."""
    schedule, total = run.optimizer.schedule, run.total_steps
    warmup = schedule.rising_steps
    lines = []
    if warmup >= total > 1:
        lines.append(
            f"{type(schedule).__name__}.warmup_steps {warmup:,} is not less than the {plural(total, 'step')}: the peak is "
            "never reached"
        )
    if schedule.peak > run.optimizer.largest_rate:
        optimizer = type(run.optimizer).__name__
        lines.append(
            f"{type(schedule).__name__}.peak is {schedule.peak:g}: with a rate above {run.optimizer.largest_rate:g} an update of "
            f"{optimizer} is larger than the weights, and a run diverges; rates of 1e-5 to 2e-2 are usual"
        )
    if run.average_decay is not None and run.average_decay < _LEAST_DECAY:
        lines.append(
            f"Run.average_decay is {run.average_decay:g}, the share of the moving average that an update keeps: so little makes "
            "no average; 0.99 to 0.9999 are usual"
        )
    return lines


def evaluation_warnings(run: Run, has_held_out: bool) -> list[str]:
    """Return warnings about held-out text; `has_held_out` is True if there is enough of it for a row."""
    skipped = [work for work, every in (("evaluated", run.eval_every), ("sampled", run.sample_every)) if every]
    if skipped and not has_held_out:
        flag = "--validation" if run.data.corruption.labels else "--validation_input"
        return [f"the text has too few held-out documents: nothing is {' or '.join(skipped)}; give a new run some by {flag}"]
    return []


def check_vocabulary(given: str | Path, model_dir: Path) -> None:
    """Raise UserError unless the vocabulary is that of the model in MODEL_DIR."""
    if vocabularies.load(given).fingerprint != vocabularies.load(model_dir / "vocab").fingerprint:
        raise UserError(f"{given} is not the vocabulary that {model_dir} started with; leave it out, or use another --model_dir")


def check_text(fingerprint: dict[str, Any], name: str, model_dir: Path) -> None:
    """Raise UserError if text with this fingerprint is not the text of the run in MODEL_DIR; messages call it `name`."""
    path = model_dir / "fingerprint.json"
    if not path.is_file():
        raise UserError(
            f"{path}, the record of the text that this run started with, is missing; restore it, or use another --model_dir"
        )
    recorded = read_json(path)
    if recorded != fingerprint:
        raise UserError(
            f"{name} is not the text that {model_dir} started with ({difference(recorded, fingerprint)}); a run keeps its text: "
            "leave the flag out, or use another --model_dir"
        )
