"""Atomic replacement of a local folder by another one.

Python has no call for it: `os.replace` refuses a target folder that is not empty. Linux exchanges two names in one step
(renameat2); elsewhere the old folder is moved aside first, and `recover` moves it back if the process was killed in between.
"""

import ctypes
import os
import shutil
from pathlib import Path

_RENAME_EXCHANGE = 2
_HERE = -100  # AT_FDCWD


def replace_folder(fresh: Path, target: Path) -> None:
    """Put `fresh` in the place of the existing folder `target`, whose content is deleted. The caller holds the target's lock."""
    if _exchange(fresh, target):
        shutil.rmtree(fresh)
        return
    aside = _aside(target)
    os.rename(target, aside)
    os.rename(fresh, target)
    shutil.rmtree(aside)


def recover(target: Path) -> None:
    """Finish or undo a replacement whose process was killed. The caller holds the target's lock."""
    aside = _aside(target)
    if not is_interrupted(target):
        return
    if os.path.lexists(target):
        shutil.rmtree(aside)
    else:
        os.rename(aside, target)


def is_interrupted(target: Path) -> bool:
    """Return whether a replacement was interrupted, or is still running."""
    aside = _aside(target)  # a link of this name is somebody else's
    return os.path.isdir(aside) and not os.path.islink(aside)  # False also where the folder above may not be read


def _aside(target: Path) -> Path:
    return target.parent / f".{target.name}.replaced"  # the root folder has no name


def _exchange(left: Path, right: Path) -> bool:
    """Exchange two names atomically; return False if the system or the file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    return renameat2(_HERE, os.fsencode(left), _HERE, os.fsencode(right), _RENAME_EXCHANGE) == 0
