"""Visible form of text, with invisible and direction-changing characters as code points."""

import re

# Fillers and selectors that count as printable and show nothing.
_BLANK = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)}

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but line ends and tabs


def without_controls(text: str) -> str:
    """Return lines of text with their control characters spelt out, by which a stranger's model could steer a terminal."""
    return _CONTROLS.sub(lambda control: f"<U+{ord(control[0]):04X}>", text)


def visible(text: str) -> str:
    """Return `text` with control, format, zero-width and unassigned characters, and unusual spaces, spelt out as <U+202E>."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isprintable() and ord(char) not in _BLANK else f"<U+{ord(char):04X}>" for char in text)
