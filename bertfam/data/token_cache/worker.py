"""A process that tokenises for another: `python -m bertfam.data.token_cache.worker VOCABULARY`.

It reads pickles of (a corpus, or None for the last one; documents) and answers each with ("block", Block), ("mistake", line)
or ("fault", traceback). It ends when its input does, which is when the process that started it is gone, however that ended.
"""

import os
import pickle
import signal
import sys
import traceback
from typing import Any


def main() -> None:
    """Serves until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: who started this one ends it
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an import prints must not come between the answers
    try:
        serve(sys.stdin.buffer, answers, sys.argv[1])
    except (EOFError, BrokenPipeError):
        os._exit(0)  # what is not yet written has no reader


def serve(requests: Any, answers: Any, vocabulary_folder: str) -> None:
    """Answers requests; raises EOFError or BrokenPipeError when there is nobody more to answer."""
    from bertfam.data import vocabularies
    from bertfam.data.token_cache.tokenize import tokenise
    from bertfam.errors import UserError
    from bertfam.subprocesses import receive, send

    vocabulary = vocabularies.load(vocabulary_folder)
    corpus: Any = None
    while True:
        request = receive(requests)
        answer: tuple[str, Any]
        try:
            given, texts = pickle.loads(request)
            corpus = given if given is not None else corpus
            answer = ("block", tokenise(corpus, vocabulary, texts))
        except UserError as mistake:
            answer = ("mistake", str(mistake))
        except BaseException:  # a panic in a library written in Rust is no Exception
            answer = ("fault", traceback.format_exc())
        send(answers, answer)


if __name__ == "__main__":
    main()
