"""The exceptions that the command line tells in one line, without a traceback."""


class UserError(Exception):
    """A mistake in a user's input: configuration, files, mesh, checkpoint.

    The message is one line that says what is wrong, where (file and line if there is one) and what to do.
    The command line prints it as `bertfam: error: MESSAGE` and exits with code 2, without a traceback.
    """


class TrainingError(Exception):
    """A run that cannot go on although nothing that was given is wrong: its numbers are no longer finite.

    The message is one line that says what happened and what to try. The command line prints it as `bertfam: error: MESSAGE`
    and exits with code 1.
    """
