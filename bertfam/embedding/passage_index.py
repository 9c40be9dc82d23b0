"""Build of an index of passages, in shards over the processes of a command; an interrupted build resumes."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from bertfam.data.corpora.formats import ends_in
from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.data.corpora.labelled.question_files import contexts
from bertfam.embedding.towers import Towers
from bertfam.errors import UserError
from bertfam.retrieval.index import Index


def plan_index(folder: str | Path, towers: Towers, corpus: LabelledFiles, shard_size: int) -> Index:
    """Return the index of a model and files of passages, whose passages are counted first; nothing is written.

    Raises:
      UserError: if there are no passages, or one is empty.
    """
    count = sum(1 for _ in tqdm(_texts(corpus), "counting passages", unit=" passages", disable=None, leave=False))
    if not count:
        raise UserError(f"--input={corpus.train[0]} has no passages")
    source = {"model": towers.source, "passages": corpus.fingerprint()}
    return Index(Path(folder), count, towers.passage.width, min(shard_size, count), source)


def build_index(
    index: Index, towers: Towers, corpus: LabelledFiles, batch_size: int, *, process: int = 0, processes: int = 1
) -> int:
    """Compute the missing shards that are this process's, every `processes`-th; return the number of passages that were cut.

    Args:
      index: the index, whose description is written.
      towers: its model.
      corpus: its files.
      batch_size: passages at a time.
      process: index of this process.
      processes: number of processes.
    """
    own = {shard for shard in index.missing() if shard % processes == process}
    texts, cut = _texts(corpus), 0
    total = sum(index.size(shard) for shard in own)
    with tqdm(total=total, desc="embedding", unit=" passages", disable=None, leave=False) as progress:
        for shard in range(max(own, default=-1) + 1):
            passages = list(islice(texts, index.size(shard)))
            if shard in own:
                embedded = towers.passage.embed(passages, batch_size, report=progress.update)
                index.write_shard(shard, embedded.vectors, passages)
                cut += embedded.cut
    return cut


def _texts(corpus: LabelledFiles) -> Iterator[str]:
    """Yield the passages of files; those of a .json file of SQuAD's format are its contexts."""
    for path in corpus.files("train"):
        if corpus.input_format is None and ends_in(path, ".json"):
            yield from contexts(path)
            continue
        for where, (text,), _ in corpus.records(path):
            if not text:
                raise UserError(f"{where}: the passage is empty; remove it, or name another column by --text")
            yield text
