#!/usr/bin/env python3
"""Trains on GPUs of a SLURM cluster: a process a GPU, which find each other by SLURM's variables.

  launch/slurm.py bert --nodes=2 --gpus_per_node=8 --time=24:00:00 -- bertfam pretrain --gin_file=runs/bert_base.gin \\
    --vocab=vocab --cache_dir=cache --model_dir=model

Writes a batch script and gives it to sbatch, in the folder where it is called, which all nodes must see. What the run prints is
appended to NAME-JOB.out. Two minutes before the time is over the run saves its state and ends with 75; then, and where it was
stuck (76), killed, or without one of its processes (77), the job is queued again and goes on from its newest checkpoint,
--restarts times at most. `scancel JOB` ends it for good; its state is saved.
"""

import argparse
import shlex
import sys

import common
import xla_flags

# `wait` returns when a signal comes, before the step has ended. A job that scancel has ended is not RUNNING any more.
BODY = """\
trap 'caught=1; scancel --signal=TERM "$SLURM_JOB_ID"' TERM
srun {command} &
step=$!
caught=1
while [ "$caught" = 1 ]; do
  caught=0
  wait "$step"
  status=$?
done
case "$status" in
  {again}) ;;
  *) [ "$status" -gt 128 ] || exit "$status" ;;
esac
if [ "${{SLURM_RESTART_COUNT:-0}}" -ge {restarts} ]; then
  echo "bertfam: ended with $status; after {restarts} restarts it is not queued again"
elif [ "$(squeue --noheader --format=%T --jobs="$SLURM_JOB_ID")" = RUNNING ]; then
  echo "bertfam: ended with $status; the job is queued again"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""


def main() -> int:
    """Submits the job; returns the exit status."""
    options, command = parse(sys.argv[1:])
    # Not twice: sbatch may have queued the job and failed afterwards.
    common.Runner(options.dry_run).run(["sbatch"], text=script(options, command))
    return 0


def parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The flags, and the command after `--`."""
    parser = common.make_parser(__file__, __doc__, "NAME [flags] -- COMMAND ...")
    parser.add_argument("name", type=common.name, metavar="NAME", help="of the job")
    parser.add_argument("--nodes", type=common.positive, default=1, metavar="N", help="how many (1)")
    parser.add_argument("--gpus_per_node", type=common.positive, default=8, metavar="N", help="and processes (8)")
    parser.add_argument("--time", type=common.word, help="[DAYS-]HH:MM:SS that one start may take (the partition's)")
    parser.add_argument(
        "--sbatch", action="append", default=[], metavar="FLAG", help="for sbatch; repeatable: --sbatch=--partition=gpu"
    )
    parser.add_argument("--restarts", type=common.count, default=100, metavar="N", help="queue it again so often at most (100)")
    parser.add_argument("--grace", type=common.count, default=120, metavar="SECONDS", help="to save the state in (120)")
    parser.add_argument("--xla_flags", action="store_true", help="set the compiler flags for GPUs of launch/xla_flags.py")
    common.add_dry_run(parser)
    options, command = common.parse(parser, words)
    common.need_command(parser, command)
    for flag in options.sbatch:
        if not flag.startswith("-"):
            parser.error(f"--sbatch={flag} is no flag of sbatch: write --sbatch=--{flag}")
    for flag in (f"--time={options.time}", *options.sbatch):
        if any(letter.isspace() or letter in "\"'#\\" for letter in flag):
            parser.error(f"{flag!r} cannot stand in a batch script: no spaces, quotes, # or \\")
    return options, command


def script(options: argparse.Namespace, command: list[str]) -> str:
    """The batch script."""
    flags = [
        f"--job-name={options.name}",
        f"--output={options.name}-%j.out",
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
                command=shlex.join(command),
                again=" | ".join(map(str, common.AGAIN)),
                restarts=options.restarts,
            ),
        ]
    )


if __name__ == "__main__":
    common.run_main(main)
