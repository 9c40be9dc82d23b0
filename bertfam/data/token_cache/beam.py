"""Builds a token cache with Apache Beam, on as many machines as its runner has; the bytes are those of `cache_builder.build`.

A worker tokenises one part of a corpus (a file, say) into files of its own, beside the cache in the making; they are joined
in order at the end. All machines must see that folder, the text and the installed package.
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

_Job = tuple[str, int, Part]  # split, number and part


def build(
    corpora: Mapping[str, Corpus],
    vocabulary: Vocabulary,
    directory: str | Path,
    options: Sequence[str] = (),
    *,
    least_documents: int = 1,
) -> TokenCache:
    """`cache_builder.build` through Beam; parts that are finished are not tokenised again after a stop.

    Args:
      options: Beam's pipeline options, such as "--runner=DirectRunner".

    Raises:
      UserError: as `cache_builder.build`; or Beam is not installed.
    """
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError as error:
        raise UserError(f"Apache Beam cannot be imported ({error}): pip install 'bertfam[beam]'") from error

    def fill(work: BuildFolder, name: str, corpus: Corpus, label: str) -> dict[str, Counts]:
        parts = {split: corpus.parts(split) for split in SPLITS}
        folder = work.parts / name
        jobs: list[_Job] = [
            (split, number, part)
            for split in SPLITS
            for number, part in enumerate(parts[split])
            if number >= _joined(work, name, split)["part"] and not _part_folder(folder, split, number).exists()
        ]
        if jobs:
            folder.mkdir(parents=True, exist_ok=True)
            write = partial(_write_part, corpus, str(work.cache / "vocab"), str(folder))
            with beam.Pipeline(options=PipelineOptions(list(options))) as pipeline:
                # Without the reshuffle one worker would have all parts.
                _ = pipeline | beam.Create(jobs) | beam.Reshuffle() | beam.Map(write)
        return {
            split: _join(work, name, corpus, split, parts[split], token_dtype(vocabulary), f"joining{label} {split}")
            for split in SPLITS
        }

    return build_with(fill, corpora, vocabulary, directory, least_documents)


def _joined(work: BuildFolder, name: str, split: str) -> dict[str, Any]:
    """How many parts are in the cache already, and what they hold."""
    done = work.done(name, split)
    # A plain build may have stopped within a part.
    return done if done and not done["read"] else {"part": 0, "counts": {}}


def _part_folder(folder: Path, split: str, number: int) -> Path:
    return folder / f"{split}-{number:06}"


def _write_part(corpus: Corpus, vocabulary_folder: str, folder: str, job: _Job) -> None:
    """Tokenises a part into a folder, which is complete or absent, whichever of several workers is first."""
    split, number, part = job
    target = _part_folder(Path(folder), split, number)
    own = target.with_name(f"{target.name}.{uuid.uuid4().hex}")
    vocabulary = _vocabulary(vocabulary_folder)
    writer = SplitWriter(own, token_dtype(vocabulary), units=corpus.units)
    try:
        for batch in batches(corpus, split, [part]):
            writer.append(tokenise(corpus, vocabulary, batch.texts))
        writer.sync()
        found: dict[str, Any] = {"counts": asdict(writer.counts)}
    except UserError as mistake:  # the runner would wrap it
        found = {"mistake": str(mistake)}
    finally:
        writer.close()
    (own / "part.json").write_text(json.dumps(found))
    with suppress(OSError):
        os.rename(own, target)
    shutil.rmtree(own, ignore_errors=True)


@lru_cache(maxsize=1)
def _vocabulary(folder: str) -> Vocabulary:
    return vocabularies.load(folder)


def _join(work: BuildFolder, name: str, corpus: Corpus, split: str, parts: Sequence[Part], dtype: str, title: str) -> Counts:
    """Appends the parts that workers have written, in order."""
    done = _joined(work, name, split)
    counts = Counts.from_json(done["counts"])
    progress = Progress(title, [part.size for part in parts], counts, 0)
    writer = SplitWriter(work.cache / name / split, dtype, counts, units=corpus.units)
    try:
        for number in range(done["part"], len(parts)):
            folder = _part_folder(work.parts / name, split, number)
            found = json.loads((folder / "part.json").read_text())
            if "mistake" in found:
                raise UserError(found["mistake"])
            writer.append_files(folder, Counts.from_json(found["counts"]))
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
