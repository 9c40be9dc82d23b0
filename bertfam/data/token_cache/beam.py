"""Token cache builds with Apache Beam, on as many machines as its runner has.

The bytes equal those of `builder.build`. A worker tokenises one part of a corpus (such as a file) into files of its own in the
build folder; they are concatenated in order at the end.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from bertfam.data.corpora.corpus import SPLITS, Corpus, Part
from bertfam.data.corpora.document_batches import batches
from bertfam.data.parallel.beam import import_beam, read_part, write_parts
from bertfam.data.token_cache.build_folder import BuildFolder
from bertfam.data.token_cache.builder import build_with, check_not_empty
from bertfam.data.token_cache.cache import TokenCache
from bertfam.data.token_cache.progress import Progress
from bertfam.data.token_cache.tokenize import Tokeniser, token_dtype
from bertfam.data.token_cache.writer import Counts, SplitWriter
from bertfam.data.vocabularies import Vocabulary


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
    import_beam()

    def write_corpus(work: BuildFolder, name: str, corpus: Corpus, label: str) -> dict[str, Counts]:
        parts = {split: corpus.parts(split) for split in SPLITS}
        missing = {
            _part_name(split, number): (split, part)
            for split in SPLITS
            for number, part in enumerate(parts[split])
            if number >= _merged(work, name, split)["part"]
        }
        tokeniser = Tokeniser(corpus, vocabulary, str(work.cache / "vocab"))
        write_parts(partial(_write_part, tokeniser), missing, work.parts / name, options)
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


def _part_name(split: str, number: int) -> str:
    return f"{split}-{number:06}"


def _write_part(tokeniser: Tokeniser, folder: Path, job: tuple[str, Part]) -> dict[str, Any]:
    """Tokenise a part of a split into a folder; return the counts."""
    split, part = job
    corpus = tokeniser.corpus
    writer = SplitWriter(folder, token_dtype(tokeniser.vocabulary), Counts(), corpus)
    try:
        for batch in batches(corpus, split, [part]):
            writer.append(tokeniser(batch.texts))
        writer.sync()
        return {"counts": asdict(writer.counts)}
    finally:
        writer.close()


def _merge(work: BuildFolder, name: str, corpus: Corpus, split: str, parts: Sequence[Part], dtype: str, title: str) -> Counts:
    """Append the parts written by the workers to the split, in order."""
    done = _merged(work, name, split)
    counts = Counts.from_json(done["counts"])
    progress = Progress(title, [part.size for part in parts], counts, 0)
    writer = SplitWriter(work.cache / name / split, dtype, counts, corpus)
    try:
        for number in range(done["part"], len(parts)):
            folder = work.parts / name / _part_name(split, number)
            writer.append_files(folder, Counts.from_json(read_part(folder)["counts"]))
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
