"""Check of the messages about mistakes in files."""

import pytest

from bertfam.errors import UserError


def check_mistake(read, extension, content, settings, expected):
    """Check that reading a file with a mistake is refused in one line.

    Args:
      read: reads a file, which it writes first: `read(name, content, **settings)`.
      extension: of the file `a.EXTENSION`.
      content: of the file.
      settings: of the reader.
      expected: the begin of the message, where "a:" stands for the file's name, and further parts of it.
    """
    begin, *others = expected
    with pytest.raises(UserError) as error:
        read(f"a.{extension}", content, **settings)
    message = str(error.value)
    assert message.startswith(begin.replace("a:", f"a.{extension}:", 1)) and "\n" not in message
    assert all(part in message for part in others), message
