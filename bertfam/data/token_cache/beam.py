"""Token cache builds with Apache Beam, on as many machines as its runner has.

The bytes equal those of `builder.build`. A worker tokenises one part of a corpus (such as a file) into files of its own in the
build folder; they are concatenated in order at the end. All machines must see that folder, the text and the installed package.
"""

import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from bertfam.data import vocabularies
from bertfam.data.corpora.corpus import SPLITS, Corpus, Part
from bertfam.data.token_cache.build_folder import BuildFolder
from bertfam.data.token_cache.builder import build_with, check_not_empty
from bertfam.data.token_cache.cache import TokenCache
from bertfam.data.token_cache.progress import Progress
from bertfam.data.token_cache.tokenize import batches, token_dtype, tokenise
from bertfam.data.token_cache.writer import Counts, SplitWriter
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError

_Job = tuple[str, int, Part]  # split, number of the part, part


def build(
    corpora: Mapping[str, Corpus],
    vocabulary: Vocabulary,
    directory: str | Path,
    options: Sequence[str] = (),
    *,
    least_documents: int = 1,
) -> TokenCache:
    """Build a token cache as `builder.build` does, with a Beam pipeline; a resumed build skips the finished parts.

    Args:
      corpora: see `builder.build`.
      vocabulary: see `builder.build`.
      directory: see `builder.build`.
      options: Beam's pipeline options, such as "--runner=DirectRunner".
      least_documents: see `builder.build`.

    Raises:
      UserError: for the reasons of `builder.build`, or if Beam is not installed.
    """
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError as error:
        raise UserError(f"Apache Beam cannot be imported ({error}): pip install 'bertfam[beam]'") from error

    def write_corpus(work: BuildFolder, name: str, corpus: Corpus, label: str) -> dict[str, Counts]:
        parts = {split: corpus.parts(split) for split in SPLITS}
        folder = work.parts / name
        jobs: list[_Job] = [
            (split, number, part)
            for split in SPLITS
            for number, part in enumerate(parts[split])
            if number >= _merged(work, name, split)["part"] and not _part_folder(folder, split, number).exists()
        ]
        if jobs:
            folder.mkdir(parents=True, exist_ok=True)
            write = partial(_write_part, corpus, str(work.cache / "vocab"), str(folder))
            with beam.Pipeline(options=PipelineOptions(list(options))) as pipeline:
                # Without the reshuffle one worker would process all parts.
                _ = pipeline | beam.Create(jobs) | beam.Reshuffle() | beam.Map(write)
        return {
            split: _merge(work, name, corpus, split, parts[split], token_dtype(vocabulary), f"merging{label} {split}")
            for split in SPLITS
        }

    return build_with(write_corpus, corpora, vocabulary, directory, least_documents)


def _merged(work: BuildFolder, name: str, split: str) -> dict[str, Any]:
    """Return the number of parts that are in the cache already, and their counts."""
    done = work.done(name, split)
    # A build without Beam may have stopped within a part.
    return done if done and not done["read"] else {"part": 0, "counts": {}}


def _part_folder(folder: Path, split: str, number: int) -> Path:
    return folder / f"{split}-{number:06}"


def _write_part(corpus: Corpus, vocabulary_folder: str, folder: str, job: _Job) -> None:
    """Tokenise a part into a folder that is complete or absent, even if several workers write the same part."""
    split, number, part = job
    target = _part_folder(Path(folder), split, number)
    partial_folder = target.with_name(f"{target.name}.{uuid.uuid4().hex}")
    vocabulary = _vocabulary(vocabulary_folder)
    writer = SplitWriter(partial_folder, token_dtype(vocabulary), units=corpus.units)
    try:
        for batch in batches(corpus, split, [part]):
            writer.append(tokenise(corpus, vocabulary, batch.texts))
        writer.sync()
        result: dict[str, Any] = {"counts": asdict(writer.counts)}
    except UserError as error:  # the runner would wrap it in an exception of its own
        result = {"mistake": str(error)}
    finally:
        writer.close()
    (partial_folder / "part.json").write_text(json.dumps(result))
    with suppress(OSError):
        os.rename(partial_folder, target)
    shutil.rmtree(partial_folder, ignore_errors=True)


@lru_cache(maxsize=1)
def _vocabulary(folder: str) -> Vocabulary:
    return vocabularies.load(folder)


def _merge(work: BuildFolder, name: str, corpus: Corpus, split: str, parts: Sequence[Part], dtype: str, title: str) -> Counts:
    """Append the parts written by the workers to the split, in order."""
    done = _merged(work, name, split)
    counts = Counts.from_json(done["counts"])
    progress = Progress(title, [part.size for part in parts], counts, 0)
    writer = SplitWriter(work.cache / name / split, dtype, counts, units=corpus.units)
    try:
        for number in range(done["part"], len(parts)):
            folder = _part_folder(work.parts / name, split, number)
            result = json.loads((folder / "part.json").read_text())
            if "mistake" in result:
                raise UserError(result["mistake"])
            writer.append_files(folder, Counts.from_json(result["counts"]))
            writer.sync()
            work.record(name, split, {"part": number + 1, "read": 0, "characters": 0, "counts": asdict(writer.counts)})
            shutil.rmtree(folder)
        if writer.counts == Counts():
            check_not_empty(corpus, split)
        writer.sync()
    finally:
        writer.close()
    progress.finish(writer.counts)
    return writer.counts
