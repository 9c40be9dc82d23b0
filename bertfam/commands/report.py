"""`bertfam report`: one HTML page of a run, or of several overlaid."""

from __future__ import annotations

import argparse
from pathlib import Path

from bertfam.commands import flags
from bertfam.errors import UserError

SUMMARY = "show a run, or several overlaid, on one HTML page: curves, configuration, time, memory, scores, checkpoints"
EXAMPLE = """\
  bertfam report runs/quickstart/model --output=report.html
  bertfam report base large --x=tokens --output=report.html
  bertfam report study --output=study.html
The page is one file that needs no network. A folder of `finetune --seeds` or `--learning_rate`, or of `bertfam ablate`, stands
for all runs in it. A run may still train: --overwrite replaces an earlier page of it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("model_dir", type=flags.folder, nargs="+", metavar="MODEL_DIR", help="folder of a run, or of several")
    parser.add_argument("--output", type=flags.path, required=True, metavar="FILE", help="HTML page to write")
    parser.add_argument("--overwrite", action="store_true", help="replace the page in the FILE of --output if it exists")
    parser.add_argument("--title", type=flags.text, metavar="TEXT", help="heading of the page (default: the names of the runs)")
    parser.add_argument(
        "--x",
        choices=("updates", "tokens"),
        default="updates",
        help="draw the curves over updates, or over tokens seen, which compares runs of different batches (default: %(default)s)",
    )
    flags.add_module_import(parser, "Python module that registers what a configuration names, for the rows of noise")


def main(args: argparse.Namespace) -> int:
    """Write the page; return the exit status."""
    for folder in args.model_dir:
        if Path(folder).absolute() == Path(args.output).absolute():
            raise UserError(f"--output={args.output} is a folder that is read: name a file to write")
    flags.check_page(args, "output")
    from bertfam.plurals import listed, plural
    from bertfam.reports.page import page
    from bertfam.reports.run_folder import open_runs
    from bertfam.storage.files import write_text

    flags.import_modules(args)
    runs = open_runs(args.model_dir)
    title = args.title or f"{'Run' if len(runs) == 1 else 'Runs'} {listed((run.label for run in runs), 4)}"
    content = page(title, runs, args.x)
    write_text(Path(args.output), content)
    print(f"wrote {args.output}: {plural(len(runs), 'run')}, {len(content) / 1e6:.1f} MB")
    return 0
