#!/usr/bin/env python3
"""Starts a command of bertfam several times on this machine, as the processes of one run.

  launch/local.py --processes=2 -- bertfam pretrain --gin_file=runs/quickstart.gin --vocab=vocab --model_dir=model

Each process gets the command with --coordinator, --num_processes and --process_index. What process 0 prints is shown as it is,
what the others print after their number in brackets. Signals are passed on to all. When one process fails, the others are
ended, and the exit status is that of the one that failed first (128 + N where signal N ended it).
"""

import argparse
import contextlib
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
from typing import IO

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OWN = "bertfam: "  # begins the lines that bertfam itself writes to stderr


def main() -> int:
    """Runs the command; returns the exit status."""
    options, command = parse(sys.argv[1:])
    coordinator = f"localhost:{free_port()}"
    processes, readers = [], []
    show = Output()
    if shutil.which(command[0]) is None:
        print(f"{OWN}error: there is no command {command[0]}", file=sys.stderr)
        return 2
    for index in range(options.processes):
        flags = [f"--coordinator={coordinator}", f"--num_processes={options.processes}", f"--process_index={index}"]
        # A session of its own: Ctrl-C comes once, from here, and what the process has started can be ended with it.
        process = subprocess.Popen(
            [*command, *flags],
            env=environment(options.devices_per_process),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        processes.append(process)
        for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            readers.append(threading.Thread(target=show.copy, args=(source, target, index), daemon=True))
            readers[-1].start()
    for number in SIGNALS:
        signal.signal(number, lambda number, _: send(processes, number))
    status = wait(processes, options.grace)
    for reader in readers:
        reader.join(1)
    return status


def parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The launcher's flags, and the command after `--`."""
    parser = argparse.ArgumentParser(
        prog="launch/local.py",
        usage="%(prog)s --processes=N [flags] -- COMMAND ...",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--processes", type=int, required=True, metavar="N", help="how many")
    parser.add_argument("--devices_per_process", type=int, metavar="N", help="simulate so many devices on the CPU in each")
    parser.add_argument(
        "--grace", type=float, default=5, metavar="SECONDS", help="for the others to end by themselves, and then by SIGTERM (5)"
    )
    own, separator, command = partition(words)
    options = parser.parse_args(own)
    if not separator or not command:
        parser.error("no command: write it after --")
    for name in ("processes", "devices_per_process"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name} is less than 1")
    return options, command


def partition(words: list[str]) -> tuple[list[str], bool, list[str]]:
    """The words before and after the first `--`, and whether there is one."""
    cut = words.index("--") if "--" in words else len(words)
    return words[:cut], cut < len(words), words[cut + 1 :]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def environment(devices: int | None) -> dict[str, str]:
    """The processes' environment; with simulated devices they leave the real ones alone."""
    variables = os.environ | {"PYTHONUNBUFFERED": "1"}
    if devices is not None:
        flags = f"{variables.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        variables |= {"XLA_FLAGS": flags.strip(), "JAX_PLATFORMS": "cpu"}
    return variables


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


def wait(processes: list[subprocess.Popen], grace: float) -> int:
    """Waits for all; ends those that are left some time after one has failed. Returns the first status that is not 0."""
    ended: queue.Queue[int] = queue.Queue()
    for process in processes:
        threading.Thread(target=lambda process=process: ended.put(process.wait()), daemon=True).start()
    status, harder = 0, [signal.SIGTERM]
    left = len(processes)
    while left:
        try:
            found = ended.get(timeout=grace if status else None)
        except queue.Empty:
            send(processes, harder.pop(0) if harder else signal.SIGKILL)
            continue
        left -= 1
        status = status or (found if found >= 0 else 128 - found)
    return status


def send(processes: list[subprocess.Popen], number: int) -> None:
    """Sends a signal to the processes that still run, and to what they have started."""
    for process in processes:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)


if __name__ == "__main__":
    raise SystemExit(main())
