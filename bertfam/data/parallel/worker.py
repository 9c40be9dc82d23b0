"""Worker process that applies functions to texts: `python -m bertfam.data.parallel.worker`.

It reads pickles (function, texts), where None stands for the previous function, and answers each with ("result", result),
("user_error", line) or ("error", traceback). It exits at the end of its input, which comes when its parent exits for any reason.
"""

import os
import pickle
import signal
import sys
import traceback
from typing import Any


def main() -> None:
    """Serve requests from stdin until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent ends this process
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output printed by imports must not mix with the answers
    try:
        serve(sys.stdin.buffer, answers)
    except (EOFError, BrokenPipeError):
        os._exit(0)  # without flushing: nobody reads the rest


def serve(requests: Any, answers: Any) -> None:
    """Answer requests; raise EOFError or BrokenPipeError when the parent is gone."""
    from bertfam.errors import UserError
    from bertfam.subprocesses import receive, send

    function: Any = None
    while True:
        request = receive(requests)
        answer: tuple[str, Any]
        try:
            new_function, texts = pickle.loads(request)
            function = new_function if new_function is not None else function
            answer = ("result", function(texts))
        except UserError as error:
            answer = ("user_error", str(error))
        except BaseException:  # a panic of a Rust library is a BaseException
            answer = ("error", traceback.format_exc())
        send(answers, answer)


if __name__ == "__main__":
    main()
