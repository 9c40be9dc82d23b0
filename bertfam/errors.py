"""User-facing errors, warnings and exit codes."""

import functools
import os
import sys
import traceback
from collections.abc import Iterable

_MAX_LINE = 4000
STORAGE_FAULT = 74  # exit status (EX_IOERR): a fault of the storage that may pass; the same command resumes


class UserError(Exception):
    """Mistake in a user's input: configuration, files, mesh, checkpoint.

    The message is one line that says what is wrong, where (file and line if there is one) and what to do.
    The command line prints it as `bertfam: error: MESSAGE` and exits with code 2, without a traceback.
    """


class RowMistake(UserError):
    """Mistake in the settings of rows, which no other vocabulary mends."""


class MissingFlag(UserError):
    """Mistake that one more flag mends.

    Attributes:
      flag: the flag; the command line prints the whole command with it.
    """

    def __init__(self, message: str, flag: str) -> None:
        super().__init__(message)
        self.flag = flag


class TrainingError(Exception):
    """Failed run with valid input: its numbers are no longer finite, or a device computes wrongly.

    The message is one line that says what happened and what to try. The command line prints it as `bertfam: error: MESSAGE`
    and exits with code 1.
    """


class TransientError(Exception):
    """Fault of storage or network that may pass by itself, after some retries; the input may be valid.

    The message is one line that begins with the cause. The command line prints it as `bertfam: error: MESSAGE` and exits with
    `STORAGE_FAULT`, after which launchers run the same command again.

    Attributes:
      reason: the cause in a few words.
    """

    def __init__(self, reason: str, message: str) -> None:
        """Put the cause before the message, which says what failed and what to do."""
        super().__init__(f"{reason}: {message}")
        self.reason = reason


def warn(lines: Iterable[str]) -> None:
    """Print warnings to stderr, without repetitions."""
    for line in dict.fromkeys(lines):
        print(f"bertfam: warning: {printable(line)}", file=sys.stderr, flush=True)


@functools.cache
def warn_once(line: str) -> None:
    """Print a warning, once in a process."""
    warn([line])


def status_of(error: BaseException) -> int:
    """Return the exit status for an exception that has a message to the user; 1 for any other."""
    if isinstance(error, UserError):
        return 2
    return STORAGE_FAULT if isinstance(error, TransientError) else 1


def report(error: BaseException) -> int:
    """Print the exception that ended a command to stderr; return the exit status."""
    match error:
        case UserError() | TrainingError() | TransientError():
            print("bertfam: error:", _one_line(error), file=sys.stderr)
            return status_of(error)
        case KeyboardInterrupt():
            print("bertfam: interrupted", file=sys.stderr)
            return 130
        case BrokenPipeError():
            return 141
        case SystemExit():
            if isinstance(error.code, str):
                print(error.code, file=sys.stderr)
            return error.code if isinstance(error.code, int) else int(error.code is not None)
    if line := out_of_memory(error):
        print("bertfam: error:", line, file=sys.stderr)
        return 2
    traceback.print_exception(error)
    return 1


def out_of_memory(error: BaseException) -> str | None:
    """Return the message about an exception that says that memory ran out, of this machine or of a device; None for others."""
    if isinstance(error, MemoryError):
        return f"the memory of this machine ran out ({_one_line(error) or 'no details'}): ask for less at once"
    # JAX's exception is told by its message, since this module does not import JAX.
    if type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError") and "RESOURCE_EXHAUSTED" in str(error):
        first = str(error).splitlines()[0][:200]
        return (
            f"the memory of a device ran out ({first}): compute each batch in more pieces by --gin.Run.microbatches=N, recompute "
            "by --gin.Execution.remat='\"full\"', or split the model over devices by --gin_file=meshes/fsdp.gin; `bertfam plan "
            "--slice=here` with the run's files finds what fits"
        )
    return None


def device_fault(error: BaseException) -> UserError | TrainingError | None:
    """Return the error to report for an exception of JAX that says that it cannot start the devices; None for others."""
    message = str(error).partition(" (set JAX_PLATFORMS")[0]
    frames = traceback.extract_tb(error.__traceback__)
    # JAX asserts, without a message, that the plugin of the only platform in JAX_PLATFORMS is installed.
    has_no_plugin = isinstance(error, AssertionError) and not message and bool(frames) and frames[-1].name == "backends"
    starts = ("Unable to initialize backend", "Unknown backend")
    if not has_no_plugin and not (isinstance(error, RuntimeError) and message.startswith(starts)):
        return None
    # The second is JAX's former name of the first.
    name = next((name for name in ("JAX_PLATFORMS", "JAX_PLATFORM_NAME") if os.environ.get(name)), "JAX_PLATFORMS")
    where = f"{name}={os.environ[name]}: " if os.environ.get(name) else ""
    absent = ("not in the list of known backends", "No visible GPU devices", "No jellyfish device found", "Unknown backend")
    if has_no_plugin or any(words in message for words in absent):
        return UserError(
            f"{where}JAX has no such device on this machine ({message or 'its plugin is not installed'}): unset {name} to "
            "use the devices that there are; GPUs require bertfam[cuda], TPUs bertfam[tpu]"
        )
    return TrainingError(f"{where}JAX cannot start the devices ({message}): look for another process that uses them")


def is_terminal(stream: object) -> bool:
    """Return True if a stream shows what is written to it on a terminal; a stream of a program's own may not say it."""
    return bool(getattr(stream, "isatty", bool)())


def _one_line(error: BaseException) -> str:
    """Return a message as one line, without the middle where it quotes a long value."""
    line = printable(" ".join(str(error).split()))
    return line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE // 2]} ... {line[-_MAX_LINE // 2 :]}"


def printable(line: str) -> str:
    """Escape control characters of names and texts that a line quotes, by which a stranger's file could steer the terminal."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in line)
