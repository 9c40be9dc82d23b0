"""Campaign that crashes real runs of `bertfam pretrain` and `bertfam finetune` in every way, and shows the results as a table.

  make campaign
  python tests/crashes/campaign.py --markdown=crashes.md

A small run on the topics of Python's `help`, with two stages, evaluations and checkpoints, is killed at moments that it marks
itself (see ../commands/phases.py), stopped, damaged and deprived of its disk, and started again, until it is finished. Then it
must equal an undisturbed run, bit for bit. Fine-tuning of its model is killed, too. The exit code is 1 if anything differs.
"""

import json
import logging
import os
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bertfam.arguments import ScriptParser, output_file, output_folder

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS / "crashes"), str(_TESTS / "commands"), str(_TESTS)]

import fine_tuning  # noqa: E402
from campaign_rows import Row  # noqa: E402
from disturbances import other_rows  # noqa: E402
from kills import kill_rows, total  # noqa: E402
from scenarios import Workspace  # noqa: E402

MIN_HITS = 5  # minimum number of kills that are known to have hit each part of a run


def table(rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = ["| disturbance | times | hit | exit codes | steps redone, at most | verdict |", "|---|---|---|---|---|---|"]
    for row in rows:
        hits = ", ".join(f"{name} {count}" for name, count in row.hits.most_common())
        codes = ", ".join(f"{code} x {count}" for code, count in sorted(row.codes.items()))
        lines.append(f"| {row.name} | {row.times} | {hits or '-'} | {codes or '-'} | {row.redone} | {row.verdict} |")
    return "\n".join(lines)


def campaign(folder: Path, kills: int, seed: int, jobs: int) -> list[Row]:
    """Run all kills and other disturbances, and return their rows."""
    workspace = Workspace.create(folder, seed)
    print(f"undisturbed: {workspace.undisturbed.seconds['all']:.0f} s", file=sys.stderr, flush=True)

    def run_and_report(task):
        try:
            row = task()
        except Exception as error:
            traceback.print_exc()
            row = Row(str(task.args[1:2]), faults=[f"{type(error).__name__}: {error}"])
        print(f"{time.strftime('%H:%M:%S')} {row.name}: {row.verdict}", file=sys.stderr, flush=True)
        return row

    kill_tasks, other_tasks = kill_rows(workspace, kills), [*other_rows(workspace), *fine_tuning.kill_rows(workspace)]
    with ThreadPoolExecutor(jobs) as pool:
        rows = list(pool.map(run_and_report, [*kill_tasks, *other_tasks]))
    return [*rows[: len(kill_tasks)], total(rows[: len(kill_tasks)], MIN_HITS), *rows[len(kill_tasks) :]]


def main() -> int:
    parser = ScriptParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="minimum number of SIGKILLs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of concurrent runs")
    parser.add_argument("--folder", type=output_folder, help="new folder that keeps the files and output of all runs")
    parser.add_argument("--json", type=output_file, help="JSON file for the rows, with the phases at each kill")
    parser.add_argument("--markdown", type=output_file, help="Markdown file for the table")
    args = parser.parse_args()
    logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax warns of metadata that nobody wrote
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (args.folder or Path(scratch) / "crashes").absolute()
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(scratch) / "compilations"))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
        rows = campaign(folder, args.kills, args.seed, args.jobs)
    print(table(rows))
    print(f"{sum(row.times for row in rows if row.name != 'all SIGKILLs')} disturbances in {time.monotonic() - start:.0f} s")
    if args.json:
        args.json.write_text(json.dumps([vars(row) | {"verdict": row.verdict} for row in rows], indent=1) + "\n")
    if args.markdown:
        args.markdown.write_text(table(rows) + "\n")
    return int(any(row.faults for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
