"""Worker process that tokenises: `python -m bertfam.data.token_cache.worker VOCABULARY`.

It reads pickles (corpus, documents), where None stands for the previous corpus, and answers each with ("block", Block),
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
        serve(sys.stdin.buffer, answers, sys.argv[1])
    except (EOFError, BrokenPipeError):
        os._exit(0)  # without flushing: nobody reads the rest


def serve(requests: Any, answers: Any, vocabulary_folder: str) -> None:
    """Answer requests; raise EOFError or BrokenPipeError when the parent is gone."""
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
            new_corpus, texts = pickle.loads(request)
            corpus = new_corpus if new_corpus is not None else corpus
            answer = ("block", tokenise(corpus, vocabulary, texts))
        except UserError as error:
            answer = ("user_error", str(error))
        except BaseException:  # a panic of a Rust library is a BaseException
            answer = ("error", traceback.format_exc())
        send(answers, answer)


if __name__ == "__main__":
    main()
