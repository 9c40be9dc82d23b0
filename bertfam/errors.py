"""The one exception for mistakes in what a user gave."""


class UserError(Exception):
    """A mistake in a user's input: configuration, files, mesh, checkpoint.

    The message is one line that says what is wrong, where (file and line if there is one) and what to do.
    The command line prints it as `bertfam: error: MESSAGE` and exits with code 2, without a traceback.
    """
