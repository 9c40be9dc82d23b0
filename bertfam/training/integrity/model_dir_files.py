"""Record of the files that a run itself has written into MODEL_DIR, by which a missing or changed one is found.

files.json {"format": 1, "files": {"config.gin": "SHA-256", ...}, "config": "text of config.gin", "vocabulary": "fingerprint"}

Files that nothing reads (plan.json, metrics) are not recorded, and checkpoints and token caches have digests of their own. A
folder without a record, from an earlier version or after a kill between two files, is used; the next resume adds the record.
"""

import hashlib
import json
from pathlib import Path

from bertfam.config.edits import find_edits
from bertfam.config.paths import shown
from bertfam.errors import UserError
from bertfam.interop.folders import RECORD
from bertfam.storage.faults import reason
from bertfam.storage.files import write_text
from bertfam.storage.untrusted import read_bytes, read_json

NAME = RECORD
CONFIG, FINGERPRINT, START = "config.gin", "fingerprint.json", "start.json"
_FORMAT = 1
_FILES = (CONFIG, FINGERPRINT, START)


def remove(model_dir: Path) -> None:
    """Delete the record, before any of its files is written.

    Raises:
      UserError: if the folder cannot be written.
    """
    try:
        (model_dir / NAME).unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{model_dir / NAME} cannot be written ({reason(error)})") from error


def write(model_dir: Path, vocabulary: str) -> None:
    """Record the files as they are, and the fingerprint of the vocabulary in vocab/."""
    present = [name for name in _FILES if (model_dir / name).is_file()]
    content = {
        "format": _FORMAT,
        "files": {name: _digest(model_dir / name) for name in present},
        "config": (model_dir / CONFIG).read_text(encoding="utf-8"),
        "vocabulary": vocabulary,
    }
    write_text(model_dir / NAME, json.dumps(content, indent=1) + "\n")


def check(model_dir: Path) -> None:
    """Raise UserError if a recorded file is missing or changed; an edit of config.gin without effect is allowed."""
    if not (model_dir / NAME).is_file():
        return
    record = _read(model_dir)
    for name, digest in record["files"].items():
        path = model_dir / name
        if not path.is_file():
            where = f' ({model_dir / NAME} has its text, as "config")' if name == CONFIG else ""
            raise UserError(f"{path}, which this run has written, is missing; restore it{where}")
        if _digest(path) == digest:
            continue
        if name != CONFIG:
            unix_text = read_bytes(path).replace(b"\r\n", b"\n")
            same = hashlib.sha256(unix_text).hexdigest() == digest
            fix = (
                "only its line ends differ, as git or an editor changes them: remove the carriage returns"
                if same
                else "restore it"
            )
            raise UserError(f"{path} is not as this run has written it; {fix}")
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise UserError(f"{path}:{line} is not UTF-8, and not as this run has written it; restore it") from error
        if edits := find_edits(record["config"], text, shown(path)):
            raise UserError(edits.describe(shown(path)))


def recorded_vocabulary(model_dir: Path) -> str | None:
    """Return the fingerprint of the vocabulary that the model was made with; None if there is no record of it."""
    if (model_dir / FINGERPRINT).is_file():
        return str(read_json(model_dir / FINGERPRINT).get("vocabulary"))
    return _read(model_dir)["vocabulary"] if (model_dir / NAME).is_file() else None


def _read(model_dir: Path) -> dict:
    path = model_dir / NAME
    try:
        record = read_json(path)
        is_sound = record["format"] == _FORMAT and isinstance(record["config"], str) and isinstance(record["vocabulary"], str)
        is_sound = is_sound and record["files"].keys() <= set(_FILES)
    except (UserError, KeyError, AttributeError):
        is_sound = False
    if not is_sound:
        raise UserError(f"{path}, the record of the files of {model_dir}, is damaged; delete it to use the files as they are")
    return record


def _digest(path: Path) -> str:
    return hashlib.sha256(read_bytes(path)).hexdigest()
