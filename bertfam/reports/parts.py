"""Parts of a report about one run: its plan, checkpoints, predictions and commands."""

import json
import shlex
from collections.abc import Iterator

from bertfam.errors import UserError
from bertfam.pages.document import html_table, html_text
from bertfam.reports.run_folder import RunFolder
from bertfam.reports.tables import MOST_ROWS
from bertfam.storage.untrusted import read_json
from bertfam.training.checkpoints import listing
from bertfam.training.run_plan import plan_text

_MOST_SAMPLES = 8  # steps whose samples are shown
_CUT = 600  # characters of a sample


def plan_html(run: RunFolder) -> str:
    """Return the plan, as the run printed it; raise UserError if it is missing or damaged."""
    plan = read_json(run.path / "plan.json")
    try:
        text = plan_text(plan)
    except (AttributeError, ArithmeticError, LookupError, TypeError, ValueError):  # of another version, or damaged
        text = json.dumps(plan, indent=1)
    return f"<pre>{'<br>'.join(map(html_text, text.splitlines()))}</pre>"


def checkpoints_html(run: RunFolder) -> str:
    """Return the table of the checkpoints; raise UserError if the folder has none."""
    table = listing.cells(listing.rows(run.path))
    if len(table) < 2:
        return "<p class='note'>The folder has no checkpoints.</p>"
    note = f"<p class='note'>The newest {MOST_ROWS} of {len(table) - 1:,}.</p>" if len(table) > MOST_ROWS + 1 else ""
    return html_table([table[0], *table[1:][-MOST_ROWS:]]) + note


def samples_html(run: RunFolder) -> str:
    """Return the predictions for held-out rows that the run has made while it trained."""
    samples = {step: texts for own in run.events for step, texts in own.samples.items()}
    steps = sorted(samples)
    count = min(len(steps), _MOST_SAMPLES)
    chosen = [steps[round(place * (len(steps) - 1) / max(count - 1, 1))] for place in range(count)]
    rows = [[f"{step:,}", _shortened(samples[step][0])] for step in dict.fromkeys(chosen)]
    note = "The first row: the text as the model sees it, and each target with the best guess and its probability."
    return f"<p class='note'>{note}</p>{html_table([['update', 'row'], *rows])}"


def _shortened(text: str) -> str:
    return text if len(text) <= _CUT else f"{text[:_CUT]} ..."


def commands_html(run: RunFolder) -> str:
    """Return the commands that started the run, and one that repeats it."""
    parts = []
    for start in run.recorded[-MOST_ROWS:]:
        versions = ", ".join(f"{name} {version}" for name, version in start.versions.items())
        command = shlex.join(start.command) or "a program"
        parts.append(f"<p class='note'>{html_text(f'{start.time}, from update {start.step:,}, {versions}')}</p>")
        parts.append(f"<pre>{html_text(command)}</pre>")
    repeated = shlex.join(_repeated(run))
    return "".join(parts) + f"<p class='note'>A new run of the same configuration:</p><pre>{html_text(repeated)}</pre>"


def _repeated(run: RunFolder) -> Iterator[str]:
    """Yield the words of a command that trains a new run of the same configuration on the same files."""
    recorded = next((own.command for own in reversed(run.recorded) if len(own.command) > 1), ())
    name = recorded[1] if len(recorded) > 1 and recorded[1] in ("distill", "finetune") else "pretrain"
    yield from ("bertfam", name, f"--gin_file={run.path / 'config.gin'}", f"--vocab={run.path / 'vocab'}")
    try:
        flags = read_json(run.path / "start.json")
    except UserError:
        flags = {}
    for flag, value in flags.items():
        if isinstance(value, str | int | float) and value is not False:
            yield f"--{flag}" if value is True else f"--{flag}={value}"
    yield "--model_dir=NEW"
