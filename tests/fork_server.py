"""Processes of commands and programs that are forked from a server which has imported `bertfam`, mostly a third of their time.

A server has read the variables of JAX, so there is one for each set of them; everything else is the forked process's own.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any

PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
_servers: dict[frozenset, "_Server"] = {}


class ForkedProcess(subprocess.Popen):
    """A command or program of bertfam_process.py, used as `subprocess.Popen` is."""

    def __init__(self, words, env, **options):
        """Start the command with the words that follow the program's name."""
        self._status = -1
        super().__init__([*map(str, words)], env=env, **options)

    def _execute_child(
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell, *pipes_and_rest
    ):
        reading, writing, out_reading, out_writing, err_reading, err_writing, *rest = pipes_and_rest
        request = {"words": args, "env": env, "cwd": cwd or os.getcwd(), "new_session": rest[5]}
        own = [reading, out_writing, err_writing]
        files = [number if number >= 0 else standard for standard, number in enumerate(own)]
        self._status = _server(env).start(request, files)
        self.pid, self._child_created = int(os.read(self._status, 20)), True
        self._close_pipe_fds(reading, writing, out_reading, out_writing, err_reading, err_writing)

    def _try_wait(self, wait_flags):
        """Wait as os.waitpid does, which a process can only do for its own children."""
        if wait_flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        status = os.read(self._status, 20)
        os.close(self._status)
        return self.pid, int(status or signal.SIGKILL)  # without a server there is no process

    def _internal_poll(self, *_, **__):
        if self._status >= 0 and self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)
        return self.returncode


class _Server:
    """A server and the socket of its requests, whose end ends it."""

    def __init__(self, environment):
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        number = theirs.fileno()
        command = [sys.executable, os.path.join(os.path.dirname(__file__), "commands", "bertfam_process.py"), f"--serve={number}"]
        options = {"pass_fds": [number], "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "start_new_session": True}
        self.process = subprocess.Popen(command, env=environment, **options)
        theirs.close()

    def start(self, request, files):
        """Send a request; return the file that has the pid of its process, and later its status."""
        reading, writing = os.pipe()
        socket.send_fds(self.requests, [json.dumps(request).encode()], [*files, writing])
        os.close(writing)
        return reading


def _server(environment):
    """Return the server for these variables of JAX."""
    variables = frozenset((name, value) for name, value in environment.items() if name.startswith(("JAX_", "PYTHON")))
    if variables not in _servers:
        _servers[variables] = _Server(environment)
    return _servers[variables]


def run_program(path, *words, environment, input=None):
    """Run a Python program of the tests to its end, which must be a success; return what it wrote to stdout and stderr.

    Args:
      path: its file.
      *words: its arguments.
      environment: variables of its environment besides those of this process.
      input: text of its stdin.
    """
    with ForkedProcess([path, *words], os.environ | environment, **PIPES, stdin=subprocess.PIPE) as process:
        out, err = process.communicate(input)
    assert process.returncode == 0, err
    return out, err


def stop():
    """Stop all servers."""
    while _servers:
        _, server = _servers.popitem()
        server.requests.close()
        server.process.wait()


def serve(number):
    """Fork a process for each request, and return in the new processes, which have the words of their commands in sys.argv.

    Args:
      number: file number of the socket of the requests.
    """
    import gc

    import bertfam.commands.evaluate_run
    import bertfam.commands.pretrain_run  # noqa: F401

    gc.freeze()
    requests = socket.socket(fileno=number)
    ended, wakeup = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    statuses: dict[int, int] = {}
    is_open = True
    while is_open or statuses:
        ready, _, _ = select.select([ended, requests] if is_open else [ended], [], [])
        if ended in ready:
            os.read(ended, 1000)
            _report(statuses)
        if requests in ready:
            message, files, _, _ = socket.recv_fds(requests, 1 << 20, 4)
            if not message:
                is_open = False
                continue
            *standard, status = files
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                requests.close()
                for other in (ended, wakeup, *statuses.values()):
                    os.close(other)
                _become(json.loads(message), standard, status)
                return
            statuses[pid] = status
            for file in standard:
                os.close(file)
    os._exit(0)


def _report(statuses):
    """Report the processes that have ended."""
    while statuses:
        pid, result = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        status = statuses.pop(pid)
        try:
            os.write(status, b"%20d" % result)
        except BrokenPipeError:
            pass
        os.close(status)


def _become(request: dict[str, Any], standard, status):
    """Make the process that of a request, and report its pid."""
    if request["new_session"]:
        os.setsid()
    os.write(status, b"%20d" % os.getpid())
    os.close(status)
    for target, file in enumerate(standard):
        os.dup2(file, target)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None  # which remembers the folder
    sys.argv[1:] = request["words"]
