"""Time from the command `bertfam pretrain` to the end of the first update, by stage, cold and warm.

    python -m benchmarks.startup --gin_file=runs/quickstart.gin --cache_dir=CACHE

All flags but --rounds and --json are those of `bertfam pretrain`. A round runs the command twice in new processes and folders:
with an empty cache of compiled programs, and again with what the first run has left in it. A run is killed after its first
update. Imports are also timed alone, in a process of their own. On a machine that does other work, CPU time says more than the
time that passed.
"""

import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.measurement import machine, table, versions
from bertfam.arguments import ScriptParser, output_file

_IMPORTS = "imports alone"
# Stages of a start, and the beginning of the line of output with which each ends.
_STAGES = {
    "imports, configuration, text, plan": "",
    "first parameters": "compiling stage 1",
    "compiling": "compiled stage 1",
    "first update": "step 1/",
}
# A checkpoint is due after the first update, before which its line is printed.
_BINDINGS = ("--gin.CHECKPOINT_EVERY=1", "--gin.Run.log_every=1")
_KINDS = ("cold", "warm")


class Seconds(NamedTuple):
    """Time that passed, and CPU time of all threads."""

    passed: float
    cpu: float

    def since(self, before: "Seconds") -> "Seconds":
        """Return the difference to an earlier time."""
        return Seconds(self.passed - before.passed, self.cpu - before.cpu)


Stages = Mapping[str, Seconds]


def stages_of(lines: Iterable[tuple[Seconds, str]]) -> dict[str, Seconds]:
    """Return the times of each stage.

    Args:
      lines: times since the start, and text of each line of output; those after the first update are not read.

    Raises:
      ValueError: if the output ends before the first update.
    """
    result, stages, before = dict[str, Seconds](), iter(_STAGES.items()), Seconds(0.0, 0.0)
    name, beginning = next(stages)
    for seconds, line in lines:
        if line.startswith(beginning):
            result[name], before = seconds.since(before), seconds
            if (following := next(stages, None)) is None:
                return result
            name, beginning = following
    raise ValueError(f"the output ended before the end of {name}")


def measure(flags: Sequence[str], folder: Path, programs: Path) -> dict[str, Seconds]:
    """Run `bertfam pretrain` up to its first update; return the times of each stage.

    Args:
      flags: flags of the command, without --model_dir.
      folder: folder for the run, which does not exist yet.
      programs: folder of the cache of compiled programs.
    """
    words = [sys.executable, "-m", "bertfam", "pretrain", *flags, *_BINDINGS, f"--model_dir={folder}"]
    cache = {"JAX_COMPILATION_CACHE_DIR": str(programs), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    imports, start = _time_imports(), time.monotonic()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ | cache) as process:
        try:
            stages = stages_of(_timed_lines(process, start))
        finally:
            process.kill()
    return {_IMPORTS: imports} | stages


def _timed_lines(process: "subprocess.Popen[str]", start: float) -> Iterator[tuple[Seconds, str]]:
    assert process.stdout is not None
    usage = psutil.Process(process.pid)
    for line in process.stdout:
        cpu = usage.cpu_times()
        yield Seconds(time.monotonic() - start, cpu.user + cpu.system), line


def _time_imports() -> Seconds:
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "import bertfam.commands.pretrain_run"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Seconds(time.monotonic() - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def table_of(rounds: Sequence[Mapping[str, Stages]]) -> str:
    """Format the medians of the rounds as a Markdown table."""
    columns = [(kind, field) for kind in _KINDS for field in Seconds._fields]

    def line(name: str, of_turn: Any) -> list[str]:
        medians = (statistics.median(getattr(seconds, field) for seconds in of_turn(kind)) for kind, field in columns)
        return [name, *(f"{seconds:.2f}" for seconds in medians)]

    lines = [line(name, lambda kind, name=name: [turn[kind][name] for turn in rounds]) for name in (_IMPORTS, *_STAGES)]
    lines.append(line("whole", lambda kind: [_whole(turn[kind]) for turn in rounds]))
    return table(["stage", *(f"{kind}, {'CPU s' if field == 'cpu' else 's'}" for kind, field in columns)], lines)


def _whole(stages: Stages) -> Seconds:
    own = [stages[name] for name in _STAGES]
    return Seconds(sum(seconds.passed for seconds in own), sum(seconds.cpu for seconds in own))


def main() -> int:
    """Measure the rounds and print the table; return the exit status."""
    parser = ScriptParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="rounds of a cold and a warm start (default: %(default)s)"
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the figures of all rounds to this file")
    args, flags = parser.parse_known_args()
    report: dict[str, Any] = {
        "command": f"bertfam pretrain {shlex.join(flags)}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(("jax", "jaxlib", "orbax-checkpoint", "flax", "optax")),
    }
    print("\n".join(f"{name}: {json.dumps(value)}" for name, value in report.items()), flush=True)
    rounds = []
    for turn in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            programs = Path(folder) / "programs"
            rounds.append({kind: measure(flags, Path(folder) / kind, programs) for kind in _KINDS})
        print(f"round {turn + 1} of {args.rounds}", file=sys.stderr, flush=True)
    print(f"\n{table_of(rounds)}", flush=True)
    if args.json:
        plain = [{kind: {name: seconds._asdict() for name, seconds in turn[kind].items()} for kind in _KINDS} for turn in rounds]
        args.json.write_text(json.dumps(report | {"rounds": plain}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
