"""TensorBoard files of a run, read for what metrics.jsonl lacks: when and from which step it was started, and its samples.

tensorboardX writes such files, and does not read them. A file is records of a length, its checksum, an event and its checksum;
checksums are not verified, as a record that is no event ends the reading.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from bertfam.storage.buckets import is_remote

_LONGEST = 1 << 20  # bytes of an event
_MOST_FILES = 1000
_MOST_SAMPLES = 2000  # events with samples of a file
_START = 1  # SessionLog.START
_SAMPLES = "samples"


class EventFile(NamedTuple):
    """TensorBoard file of a start.

    Attributes:
      time: seconds since 1970.
      step: number of updates made before.
      samples: the predictions for held-out rows, one text a row, by step.
    """

    time: float
    step: int
    samples: dict[int, list[str]]


def read_events(model_dir: Path) -> list[EventFile]:
    """Read the files of a run that begin with a start, in the order of their times; those in a bucket are not read."""
    if is_remote(model_dir) or not model_dir.is_dir():
        return []
    paths = sorted(path for path in model_dir.iterdir() if ".tfevents." in path.name)
    paths = [path for path in paths if path.is_file() and not path.is_symlink()]
    return sorted((found for path in paths[:_MOST_FILES] if (found := _read(path))), key=lambda own: (own.time, own.step))


def _read(path: Path) -> EventFile | None:
    from google.protobuf.message import DecodeError
    from tensorboardX.proto.event_pb2 import Event

    start, samples = None, dict[int, list[str]]()
    try:
        with open(path, "rb") as file:
            for number, record in enumerate(_records(file)):
                if number > 1 and _SAMPLES.encode() not in record:  # a curve
                    continue
                event = Event.FromString(record)
                if event.session_log.status == _START and start is None and 0 < event.step:
                    start = EventFile(event.wall_time, event.step - 1, samples)
                elif (texts := _samples(event)) and len(samples) < _MOST_SAMPLES:
                    samples[event.step] = texts
    except (DecodeError, OSError):  # what came before is used
        pass
    is_time = start is not None and 0 <= start.time < 2**33
    return start if is_time else None


def _records(file: IO[bytes]) -> Iterator[bytes]:
    while len(header := file.read(12)) == 12:
        (length,) = struct.unpack("<Q", header[:8])
        if length > _LONGEST:
            return
        record = file.read(length)
        if len(record) < length or len(file.read(4)) < 4:  # a process was killed while it wrote
            return
        yield record


def _samples(event: Any) -> list[str]:
    """Return the texts of an event of samples; [] for another event."""
    for value in event.summary.value:
        if value.tag == _SAMPLES and value.tensor.string_val:
            text = value.tensor.string_val[0].decode("utf-8", errors="replace")
            return [line.removeprefix("    ") for line in text.split("\n")]
    return []
