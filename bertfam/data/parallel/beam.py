"""Work on the parts of a corpus with Apache Beam, on as many machines as its runner has.

A worker writes a part (such as a file) into a folder of its own. All machines must see the folder of the parts, the text and the
installed package. The caller reads the parts in order, so that its result does not depend on the workers.
"""

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from bertfam.errors import UserError
from bertfam.storage import locks
from bertfam.storage.buckets import is_remote
from bertfam.storage.files import clear_folder, has_links
from bertfam.storage.paths import partial_folder

# Writes a part into a folder, which exists, and returns what `read_part` returns: JSON.
PartWriter = Callable[[Path, Any], dict[str, Any]]


def import_beam() -> ModuleType:
    """Return Apache Beam; raise UserError if it is not installed."""
    try:
        import apache_beam
    except ImportError as error:
        raise UserError(f"Apache Beam cannot be imported ({error}): pip install 'bertfam[beam]'") from error
    return apache_beam


def write_parts(write: PartWriter, parts: Mapping[str, Any], folder: Path, options: Sequence[str]) -> None:
    """Write each part into FOLDER/name in a Beam pipeline, but for those that are there already.

    Args:
      write: function that can be pickled.
      parts: the parts by the names of their folders.
      folder: the folder of the parts.
      options: Beam's pipeline options, such as "--runner=DirectRunner".
    """
    beam = import_beam()
    from apache_beam.options.pipeline_options import PipelineOptions

    jobs = [(name, part) for name, part in parts.items() if not (folder / name).exists()]
    if jobs:
        folder.mkdir(parents=True, exist_ok=True)
        with beam.Pipeline(options=PipelineOptions(list(options))) as pipeline:
            # Without the reshuffle one worker would process all parts.
            _ = pipeline | beam.Create(jobs) | beam.Reshuffle() | beam.Map(partial(_write_part, write, str(folder)))


def _write_part(write: PartWriter, folder: str, job: tuple[str, Any]) -> None:
    """Write a part into a folder that is complete or absent, even if several workers write the same part."""
    name, part = job
    unfinished = Path(folder, f"{name}.{uuid.uuid4().hex}")
    unfinished.mkdir()
    try:
        result = write(unfinished, part)
    except UserError as error:  # the runner would wrap it in an exception of its own
        result = {"mistake": str(error)}
    (unfinished / "part.json").write_text(json.dumps(result))
    with suppress(OSError):
        os.rename(unfinished, Path(folder, name))
    shutil.rmtree(unfinished, ignore_errors=True)


def read_part(folder: Path) -> dict[str, Any]:
    """Return the result of the writer of a part; raise its UserError."""
    result = json.loads((folder / "part.json").read_text())
    if "mistake" in result:
        raise UserError(result["mistake"])
    return result


@contextmanager
def parts_folder(output: Path, fingerprint: Mapping[str, Any]) -> Iterator[Path]:
    """Open .NAME.partial beside the output NAME, for the parts that it is made of.

    The folder is deleted at the end. It is kept if the work is interrupted, and its parts are used again by work of the same
    fingerprint.

    Raises:
      UserError: if the output is in a bucket, or the folder cannot be written.
    """
    if is_remote(output):
        raise UserError(f"--output={output}: the workers of Beam write beside it; name a path of a file system that they share")
    folder, is_interrupted = partial_folder(output.absolute()), False
    with locks.hold(folder, seconds=None, named=output):
        record = folder / "fingerprint.json"
        expected = json.dumps(fingerprint)
        if not record.is_file() or record.read_bytes() != expected.encode() or has_links(folder):
            clear_folder(folder, keep=(locks.NAME,))
            record.write_text(expected)
        try:
            yield folder / "parts"
        except UserError:
            raise
        except BaseException:
            is_interrupted = True
            raise
        finally:
            if not is_interrupted:
                clear_folder(folder, keep=(locks.NAME,))
