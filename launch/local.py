#!/usr/bin/env python3
"""Start a bertfam command several times on this machine, as the processes of one run.

  launch/local.py --processes=2 -- bertfam pretrain --gin_file=runs/quickstart.gin --vocab=vocab --model_dir=model

Each process gets the command with --coordinator, --num_processes and --process_index. The output of process 0 is shown unchanged,
that of the others after their index in brackets. Signals are passed on to all processes. When one process fails, the others are
ended, and the exit status is that of the process that failed first (128 + N if signal N killed it).

With --restarts=N all processes are restarted, and the run resumes from its newest checkpoint, after it was preempted (75; its
state is saved), stuck (76), killed by a signal, lost one of its processes (77) or could not reach its storage (74). They are
not restarted after other failures, nor after a signal to the launcher.
"""

import argparse
import contextlib
import os
import queue
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from typing import IO

import common

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OWN = "bertfam: "  # prefix of bertfam's own lines on stderr


def main() -> int:
    """Run the command; return the exit status."""
    options, command = parse(sys.argv[1:])
    if not options.dry_run and shutil.which(command[0]) is None:
        raise common.LaunchError(f"command not found: {command[0]}")
    group = Group()
    if not options.dry_run:
        for number in SIGNALS:
            signal.signal(number, lambda number, _: group.stop(number))
    return common.run_with_restarts(
        lambda: once(options, command, group), options.restarts, stopped=lambda: group.stopped is not None
    )


def parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the launcher's flags, and the command after `--`."""
    parser = common.make_parser(__file__, __doc__, "--processes=N [flags] -- COMMAND ...")
    parser.add_argument("--processes", type=common.positive, required=True, metavar="N", help="number of processes")
    parser.add_argument(
        "--devices_per_process", type=common.positive, metavar="N", help="simulate N devices on the CPU in each process"
    )
    parser.add_argument("--restarts", type=common.count, default=0, metavar="N", help="largest number of restarts (default: 0)")
    parser.add_argument(
        "--grace",
        type=common.seconds,
        default=5,
        metavar="SECONDS",
        help="time for the other processes to end by themselves, and again to end after SIGTERM (default: 5)",
    )
    common.add_dry_run(parser)
    options, command = common.parse(parser, words)
    common.check_command(parser, command, f"run it without {parser.prog}")
    for flag in ("--coordinator", "--num_processes"):
        if any(word.partition("=")[0] == flag for word in command):
            parser.error(f"{parser.prog} gives each process {flag}: leave it out of the command")
    return options, command


def once(options: argparse.Namespace, command: list[str], group: "Group") -> int:
    """Run the processes to their end, or print their commands in a dry run; return the exit status."""
    coordinator = f"localhost:{free_port()}"
    added = environment(options.devices_per_process) | common.run_token()
    output, readers = Output(), []
    group.processes = []
    for index in range(options.processes):
        flags = [f"--coordinator={coordinator}", f"--num_processes={options.processes}", f"--process_index={index}"]
        if options.dry_run:
            print(shlex.join(["env", *(f"{name}={value}" for name, value in added.items()), *command, *flags]))
            continue
        # In a session of its own the process gets Ctrl-C only once, from here, and its children can be ended with it.
        process = subprocess.Popen(
            [*command, *flags],
            env=os.environ | added,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        group.processes.append(process)
        for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            readers.append(threading.Thread(target=output.copy, args=(source, target, index), daemon=True))
            readers[-1].start()
        if group.stopped is not None:
            break
    if group.stopped is not None:  # the signal arrived before all processes had started
        group.send(group.stopped)
    status = wait(group, options.grace)
    for reader in readers:
        reader.join(5)  # not longer, because a process that outlives them may hold the pipe
    return status


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def environment(devices: int | None) -> dict[str, str]:
    """Return additional environment variables of the processes; with simulated devices they use the CPU only."""
    if devices is None:
        return {"PYTHONUNBUFFERED": "1"}
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    return {"PYTHONUNBUFFERED": "1", "XLA_FLAGS": flags.strip(), "JAX_PLATFORMS": "cpu"}


class Group:
    """Running processes, and the signal that the launcher received, if any."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen] = []
        self.stopped: int | None = None

    def stop(self, number: int) -> None:
        """Pass a signal on; no process is restarted after it."""
        self.stopped = number
        self.send(number)

    def send(self, number: int) -> None:
        """Send a signal to all processes that still run, and to their children."""
        for process in self.processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)


class Output:
    """Copies the output of the processes line by line."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shown: set[str] = set()

    def copy(self, source: IO[str], target: IO[str], index: int) -> None:
        """Copy one stream to its end; equal messages of several processes to the user are shown once."""
        for line in source:
            with self._lock:
                if target is sys.stderr and line.startswith(OWN):
                    if line in self._shown:
                        continue
                    self._shown.add(line)
                target.write(line if index == 0 else f"[{index}] {line}")
                target.flush()


def wait(group: Group, grace: float) -> int:
    """Wait for all processes, and end the rest some time after one failed; return the first nonzero exit status."""
    ended: queue.Queue[int] = queue.Queue()
    for process in group.processes:
        threading.Thread(target=lambda process=process: ended.put(process.wait()), daemon=True).start()
    status, signals = 0, [signal.SIGTERM]
    left = len(group.processes)
    while left:
        try:
            code = ended.get(timeout=grace if status else None)
        except queue.Empty:
            group.send(signals.pop(0) if signals else signal.SIGKILL)
            continue
        left -= 1
        status = status or (code if code >= 0 else 128 - code)
    return status


if __name__ == "__main__":
    common.run_main(main)
