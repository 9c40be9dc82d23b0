"""Crashes real runs of `bertfam pretrain` in every way, and shows what came of it, as a table.

  python tests/crashes/campaign.py --markdown=crashes.md

A small run on the topics of Python's `help`, with two stages, evaluations and checkpoints, is killed at moments that it marks
itself (see ../commands/phases.py), stopped, damaged and deprived of its disk, and started again, until it is finished. Then it
must be what a run is that nothing has hit, bit for bit. Exits with 1 where anything is not as it must be.
"""

import argparse
import json
import logging
import os
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS / "crashes"), str(_TESTS / "commands"), str(_TESTS)]

from disturbances import other_rows  # noqa: E402
from kills import everything, kill_rows, total  # noqa: E402
from rows import Row  # noqa: E402
from stories import Ground  # noqa: E402

LEAST = 5  # kills that must be shown to have hit each thing


def table(rows: list[Row]) -> str:
    """Markdown."""
    lines = ["| disturbance | times | hit | exit codes | steps redone, at most | verdict |", "|---|---|---|---|---|---|"]
    for row in rows:
        hits = ", ".join(f"{name} {count}" for name, count in row.hits.most_common())
        codes = ", ".join(f"{code} x {count}" for code, count in sorted(row.codes.items()))
        lines.append(f"| {row.name} | {row.times} | {hits or '-'} | {codes or '-'} | {row.redone} | {row.verdict} |")
    return "\n".join(lines)


def campaign(folder: Path, kills: int, seed: int, jobs: int) -> list[Row]:
    """Does it all."""
    ground = Ground.made(folder, seed)
    print(f"undisturbed: {ground.undisturbed.seconds['all']:.0f} s", file=sys.stderr, flush=True)

    def tell(make):
        try:
            row = make()
        except Exception as error:
            traceback.print_exc()
            row = Row(str(make.args[1:2]), faults=[f"{type(error).__name__}: {error}"])
        print(f"{time.strftime('%H:%M:%S')} {row.name}: {row.verdict}", file=sys.stderr, flush=True)
        return row

    killing, others = kill_rows(ground, kills), other_rows(ground)
    with ThreadPoolExecutor(jobs) as pool:
        rows = list(pool.map(tell, [*killing, *others]))
    return [*rows[: len(killing)], total(rows[: len(killing)], LEAST), *rows[len(killing) :]]


def short(folder: Path, seed: int) -> Row:
    """One run that is killed once in each way."""
    return everything(Ground.made(folder, seed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="SIGKILLs, at least")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at once")
    parser.add_argument("--folder", type=Path, help="where everything is kept that the runs leave and say; must not exist")
    parser.add_argument("--json", type=Path, help="file for the rows, with what was under way at each kill")
    parser.add_argument("--markdown", type=Path, help="file for the table")
    args = parser.parse_args()
    logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax misses notes that nobody wrote
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (args.folder or Path(scratch) / "crashes").absolute()
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(scratch) / "compilations"))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
        rows = campaign(folder, args.kills, args.seed, args.jobs)
    print(table(rows))
    print(f"{sum(row.times for row in rows if row.name != 'all SIGKILLs')} disturbances in {time.monotonic() - began:.0f} s")
    if args.json:
        args.json.write_text(json.dumps([vars(row) | {"verdict": row.verdict} for row in rows], indent=1) + "\n")
    if args.markdown:
        args.markdown.write_text(table(rows) + "\n")
    return int(any(row.faults for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
