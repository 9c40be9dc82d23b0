#!/usr/bin/env python3
"""Starts a command of bertfam several times on this machine, as the processes of one run.

  launch/local.py --processes=2 -- bertfam pretrain --gin_file=runs/quickstart.gin --vocab=vocab --model_dir=model

Each process gets the command with --coordinator, --num_processes and --process_index. What process 0 prints is shown as it is,
what the others print after their number in brackets. Signals are passed on to all. When one process fails, the others are
ended, and the exit status is that of the one that failed first (128 + N where signal N ended it).

With --restarts=N all are started again, and the run goes on from its newest checkpoint, where it was preempted (75: its state is
saved), stuck (76), killed by a signal, or without one of its processes (77); not after other failures, nor when the signal was
sent to the launcher.
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
OWN = "bertfam: "  # begins the lines that bertfam itself writes to stderr


def main() -> int:
    """Runs the command; returns the exit status."""
    options, command = parse(sys.argv[1:])
    if not options.dry_run and shutil.which(command[0]) is None:
        raise common.Failed(f"there is no command {command[0]}")
    group = Group()
    if not options.dry_run:
        for number in SIGNALS:
            signal.signal(number, lambda number, _: group.stop(number))
    return common.again(lambda: once(options, command, group), options.restarts, stopped=lambda: group.stopped is not None)


def parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The launcher's flags, and the command after `--`."""
    parser = common.make_parser(__file__, __doc__, "--processes=N [flags] -- COMMAND ...")
    parser.add_argument("--processes", type=common.positive, required=True, metavar="N", help="how many")
    parser.add_argument(
        "--devices_per_process", type=common.positive, metavar="N", help="simulate so many devices on the CPU in each"
    )
    parser.add_argument("--restarts", type=common.count, default=0, metavar="N", help="start again so often at most (0)")
    parser.add_argument(
        "--grace",
        type=common.seconds,
        default=5,
        metavar="SECONDS",
        help="for the others to end by themselves, and then by SIGTERM (5)",
    )
    common.add_dry_run(parser)
    options, command = common.parse(parser, words)
    common.need_command(parser, command)
    return options, command


def once(options: argparse.Namespace, command: list[str], group: "Group") -> int:
    """Runs the processes to their end, or prints how they would be started; returns the exit status."""
    coordinator = f"localhost:{free_port()}"
    added = environment(options.devices_per_process)
    show, readers = Output(), []
    group.processes = []
    for index in range(options.processes):
        flags = [f"--coordinator={coordinator}", f"--num_processes={options.processes}", f"--process_index={index}"]
        if options.dry_run:
            print(shlex.join(["env", *(f"{name}={value}" for name, value in added.items()), *command, *flags]))
            continue
        # A session of its own: Ctrl-C comes once, from here, and what the process has started can be ended with it.
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
            readers.append(threading.Thread(target=show.copy, args=(source, target, index), daemon=True))
            readers[-1].start()
        if group.stopped is not None:
            break
    if group.stopped is not None:  # before all of them were there
        group.send(group.stopped)
    status = wait(group, options.grace)
    for reader in readers:
        reader.join(1)
    return status


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def environment(devices: int | None) -> dict[str, str]:
    """What the processes' environment has besides; with simulated devices they leave the real ones alone."""
    if devices is None:
        return {"PYTHONUNBUFFERED": "1"}
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    return {"PYTHONUNBUFFERED": "1", "XLA_FLAGS": flags.strip(), "JAX_PLATFORMS": "cpu"}


class Group:
    """The processes of now, and the signal that the launcher has got, if any."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen] = []
        self.stopped: int | None = None

    def stop(self, number: int) -> None:
        """Passes a signal on, after which nothing is started again."""
        self.stopped = number
        self.send(number)

    def send(self, number: int) -> None:
        """Sends a signal to the processes that still run, and to what they have started."""
        for process in self.processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)


class Output:
    """Copies what the processes print, line by line."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: set[str] = set()

    def copy(self, source: IO[str], target: IO[str], index: int) -> None:
        """Copies one stream to its end; what several processes have to say to the user is shown once."""
        for line in source:
            with self._lock:
                if target is sys.stderr and line.startswith(OWN):
                    if line in self._told:
                        continue
                    self._told.add(line)
                target.write(line if index == 0 else f"[{index}] {line}")
                target.flush()


def wait(group: Group, grace: float) -> int:
    """Waits for all; ends those that are left some time after one has failed. Returns the first status that is not 0."""
    ended: queue.Queue[int] = queue.Queue()
    for process in group.processes:
        threading.Thread(target=lambda process=process: ended.put(process.wait()), daemon=True).start()
    status, harder = 0, [signal.SIGTERM]
    left = len(group.processes)
    while left:
        try:
            found = ended.get(timeout=grace if status else None)
        except queue.Empty:
            group.send(harder.pop(0) if harder else signal.SIGKILL)
            continue
        left -= 1
        status = status or (found if found >= 0 else 128 - found)
    return status


if __name__ == "__main__":
    common.run_main(main)
