"""Answers of a module that runs in a child process, because it imports what this process must not, such as TensorFlow."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from bertfam.errors import UserError
from bertfam.subprocesses import command, environment, receive, send


def ask(module: str, request: Any) -> Any:
    """Run a module that calls `answer`, with JAX on the CPU, and return its answer to a request.

    Raises:
      UserError: as the module raised it.
      SystemExit: the module failed; it has printed the reason.
    """
    process = subprocess.Popen(
        command(module), env=environment(JAX_PLATFORMS="cpu"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdin and process.stdout
        try:
            send(process.stdin, request)
            value, error = pickle.loads(receive(process.stdout))
        except (EOFError, BrokenPipeError):
            raise SystemExit(process.wait() or 1) from None
    if error is not None:
        raise UserError(error)
    return value


def answer(function: Callable[[Any], Any]) -> None:
    """Answer one request from stdin by a function of it."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output printed by imports must not mix with the answer
    request = pickle.loads(receive(sys.stdin.buffer))
    try:
        send(answers, (function(request), None))
    except UserError as error:
        send(answers, (None, str(error)))
