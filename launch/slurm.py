#!/usr/bin/env python3
r"""Train on GPUs of a SLURM cluster: one process per GPU, connected by SLURM's variables.

  launch/slurm.py bert --nodes=2 --gpus_per_node=8 --time=24:00:00 -- bertfam pretrain --gin_file=runs/bert_base.gin \
    --vocab=vocab --cache_dir=cache --model_dir=model

It submits a batch script with sbatch from the current folder, which all nodes must share. The output of the run is appended to
NAME-JOB.out. Two minutes before the time limit the run saves its state and exits with 75. After that, and after a fault of the
storage that may pass (74), a stuck step (76), a lost process (77) or a signal that killed the run, the job is queued again and
resumes from its newest checkpoint, at most --restarts times. `scancel JOB` ends it for good, after it has saved its state.
With --array=N, `bertfam ablate --output=DIR` runs N times as an array job, each time on another run of the study in DIR.
"""

import argparse
import shlex
import sys

import common
import xla_flags

# `wait` returns early when a signal arrives. A job that scancel ended is no longer RUNNING.
BODY = """\
# The number of an array's first element is that of the whole array too, and names that.
job="$SLURM_JOB_ID"
[ -z "$SLURM_ARRAY_TASK_ID" ] || job="${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
# A secret by which the processes of the run recognise each other.
BERTFAM_RUN_TOKEN="$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')"
export BERTFAM_RUN_TOKEN
trap 'caught=1; scancel --signal=TERM "$job"' TERM
srun {command} &
step=$!
caught=1
while [ "$caught" = 1 ]; do
  caught=0
  wait "$step"
  status=$?
done
case "$status" in
  {restarted}) ;;
  *) [ "$status" -gt 128 ] || exit "$status" ;;
esac
if [ "${{SLURM_RESTART_COUNT:-0}}" -ge {restarts} ]; then
  echo "bertfam: exited with $status; not queued again after {restarts} restarts"
elif [ "$(squeue --noheader --format=%T --jobs="$job")" = RUNNING ]; then
  echo "bertfam: exited with $status; the job is queued again"
  scontrol requeue "$job"
fi
exit "$status"
"""


def main() -> int:
    """Submit the job; return the exit status."""
    options, command = parse(sys.argv[1:])
    # No retries: sbatch may have queued the job before it failed.
    common.Runner(options.dry_run).run(["sbatch"], text=script(options, command))
    return 0


def parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the flags, and the command after `--`."""
    parser = common.make_parser(__file__, __doc__, "NAME [flags] -- COMMAND ...")
    parser.add_argument("name", type=common.name, metavar="NAME", help="name of the job")
    parser.add_argument("--nodes", type=common.positive, default=1, metavar="N", help="number of nodes (default: 1)")
    parser.add_argument(
        "--gpus_per_node", type=common.positive, default=8, metavar="N", help="GPUs, and processes, per node (default: 8)"
    )
    parser.add_argument(
        "--time", type=common.word, help="time limit of one start, [DAYS-]HH:MM:SS (default: that of the partition)"
    )
    parser.add_argument(
        "--array", type=common.positive, metavar="N", help="submit N runs of a study, each with --run and its number, from 0"
    )
    parser.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="FLAG",
        help="flag for sbatch, such as --sbatch=--partition=gpu; repeatable",
    )
    parser.add_argument(
        "--restarts", type=common.count, default=100, metavar="N", help="largest number of restarts (default: 100)"
    )
    parser.add_argument(
        "--grace", type=common.count, default=120, metavar="SECONDS", help="time to save the state (default: 120)"
    )
    parser.add_argument("--xla_flags", action="store_true", help="set the compiler flags for GPUs of launch/xla_flags.py")
    common.add_dry_run(parser)
    options, command = common.parse(parser, words)
    if options.array and any(word.startswith("--run=") for word in command):
        parser.error(f"--array={options.array} gives each run its --run: leave it out of the command")
    is_alone = options.nodes * options.gpus_per_node == 1
    common.check_command(
        parser, command, None if is_alone else f"run it without {parser.prog}, or give --nodes=1 --gpus_per_node=1"
    )
    if options.time and options.time.replace(":", "", 1).isdecimal() and options.time.count(":") < 2:
        common.report(f"warning: SLURM reads --time={options.time} as minutes; write HH:MM:SS for hours")
    for flag in options.sbatch:
        if not flag.startswith("-"):
            parser.error(f"--sbatch={flag} is not a flag of sbatch: write --sbatch=--{flag}")
    for flag in (f"--time={options.time}", *options.sbatch):
        if any(letter.isspace() or letter in "\"'#\\" for letter in flag):
            parser.error(f"{flag!r} is not allowed in a batch script: use no spaces, quotes, # or \\")
    return options, command


def script(options: argparse.Namespace, command: list[str]) -> str:
    """Return the batch script."""
    flags = [
        f"--job-name={options.name}",
        f"--output={options.name}-{'%A_%a' if options.array else '%j'}.out",
        *([f"--array=0-{options.array - 1}"] if options.array else []),
        "--open-mode=append",
        f"--nodes={options.nodes}",
        f"--gpus-per-node={options.gpus_per_node}",
        f"--ntasks-per-node={options.gpus_per_node}",
        "--requeue",
        f"--signal=B:TERM@{options.grace}",
        *([f"--time={options.time}"] if options.time else []),
        *options.sbatch,
    ]
    variables = xla_flags.environment("gpu", options.xla_flags)
    return "".join(
        [
            "#!/usr/bin/env bash\n",
            *(f"#SBATCH {flag}\n" for flag in flags),
            *(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()),
            BODY.format(
                command=shlex.join(command) + (' --run="$SLURM_ARRAY_TASK_ID"' if options.array else ""),
                restarted=" | ".join(map(str, common.RESTART_REASONS)),
                restarts=options.restarts,
            ),
        ]
    )


if __name__ == "__main__":
    common.run_main(main)
