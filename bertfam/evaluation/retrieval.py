"""Retrieval of texts by their embeddings: files of BEIR's form (Thakur et al. 2021), search, and scores of rankings.

`pytrec_eval` was considered, and is compiled code that bertfam would install for three sums. Its scores of 250 random rankings
without ties were equal to these (pytrec_eval-terrier 0.5.11).
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertfam.data.corpora.formats import read_objects, replace_invalid
from bertfam.data.corpora.text_lines import ENDINGS, read_lines
from bertfam.errors import UserError

Similarity = Literal["cosine", "dot"]
# Texts -> vectors float32[texts, embed].
Embed = Callable[[Sequence[str]], np.ndarray]

CUTOFFS = {"ndcg": (10,), "mrr": (10,), "recall": (10, 100)}
_QUERIES_AT_ONCE = 64
_COLUMNS = ("query-id", "corpus-id", "score")
_SCORE = re.compile(r"-?[0-9]{1,9}")


@dataclass(frozen=True)
class Collection:
    """Documents, queries and judgements.

    Attributes:
      corpus: text of each document, by its id.
      queries: text of each judged query, by its id.
      relevance: relevance of the judged documents above 0, by their ids, by the ids of the queries.
    """

    corpus: Mapping[str, str]
    queries: Mapping[str, str]
    relevance: Mapping[str, Mapping[str, int]]


def read_collection(folder: Path, split: str) -> Collection:
    """Read corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv of a folder, each plain or with .gz or .zst at the end of its name.

    Queries without a relevant document are left out.

    Raises:
      UserError: a file is missing, a line is not as it must be, an id occurs twice, or a judgement names an unknown id.
    """
    corpus = _read_texts(_file(folder, "corpus.jsonl"), ("title", "text"))
    queries = _read_texts(_file(folder, "queries.jsonl"), ("text",))
    path = _file(folder, f"qrels/{split}.tsv")
    relevance: dict[str, dict[str, int]] = {}
    for where, query, document, score in _judgements(path):
        if query not in queries:
            raise UserError(
                f"{where}: the query {query!r} is not in {folder / 'queries.jsonl'}; remove the line, or add the query"
            )
        if document not in corpus:
            raise UserError(f"{where}: the document {document!r} is not in {folder / 'corpus.jsonl'}; remove the line, or add it")
        of_query = relevance.setdefault(query, {})
        if document in of_query:
            raise UserError(f"{where}: the query {query!r} and the document {document!r} are judged twice; keep one of the lines")
        of_query[document] = score
    relevance = {query: {name: score for name, score in judged.items() if score > 0} for query, judged in relevance.items()}
    relevance = {query: judged for query, judged in relevance.items() if judged}
    if not relevance:
        raise UserError(f"{path} has no query with a relevant document (score above 0), so nothing can be scored")
    return Collection(corpus, {query: queries[query] for query in relevance}, relevance)


def search(
    queries: np.ndarray, corpus: np.ndarray, count: int, similarity: Similarity
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for each query the indices int64[n] of the most similar documents, the best first, and their similarities.

    Args:
      queries: float32[queries, embed].
      corpus: float32[documents, embed].
      count: number of documents to find; of equal ones the first of the corpus come first.
      similarity: "cosine" or "dot", the product.
    """
    if similarity == "cosine":
        queries, corpus = (
            vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12) for vectors in (queries, corpus)
        )
    count = min(count, len(corpus))
    for begin in range(0, len(queries), _QUERIES_AT_ONCE):
        for scores in queries[begin : begin + _QUERIES_AT_ONCE] @ corpus.T:
            least = np.partition(scores, len(scores) - count)[len(scores) - count]
            found = np.flatnonzero(scores >= least)
            found = found[np.argsort(-scores[found], kind="stable")][:count]
            yield found, scores[found]


def score_ranking(ranking: Sequence[str], relevant: Mapping[str, int]) -> dict[str, float]:
    """Score the ranking of one query.

    With r_i the relevance of the document at rank i = 1, 2, ..., and r*_i that of the best possible ranking,

        ndcg@k = sum over i <= k of r_i / log2(i + 1), divided by the same sum of r*_i (Järvelin, Kekäläinen 2002; trec_eval's)
        mrr@k = 1 / the first rank i <= k with r_i > 0, or 0
        recall@k = share of the relevant documents that are at ranks i <= k

    Args:
      ranking: ids of documents, the best first.
      relevant: relevance above 0 of documents by id; at least one.
    """
    gains = [relevant.get(name, 0) for name in ranking]
    ideal = sorted(relevant.values(), reverse=True)
    first = next((rank for rank, gain in enumerate(gains, 1) if gain), math.inf)
    scores = {f"ndcg@{k}": _discounted(gains[:k]) / _discounted(ideal[:k]) for k in CUTOFFS["ndcg"]}
    scores |= {f"mrr@{k}": 1 / first if first <= k else 0.0 for k in CUTOFFS["mrr"]}
    return scores | {f"recall@{k}": sum(gain > 0 for gain in gains[:k]) / len(relevant) for k in CUTOFFS["recall"]}


def evaluate_retrieval(
    collection: Collection, embed_queries: Embed, embed_documents: Embed, similarity: Similarity = "cosine"
) -> dict[str, float]:
    """Return the means over the queries of the scores of `score_ranking`.

    A document with the id of a query is not among those found for it, as in BEIR's own evaluation.
    """
    names = list(collection.corpus)
    documents = embed_documents(list(collection.corpus.values()))
    queries = embed_queries(list(collection.queries.values()))
    most = max(max(cutoffs) for cutoffs in CUTOFFS.values())
    scores = []
    for query, (found, _) in zip(collection.queries, search(queries, documents, most + 1, similarity), strict=True):
        ranking = [names[index] for index in found.tolist() if names[index] != query][:most]
        scores.append(score_ranking(ranking, collection.relevance[query]))
    return {name: float(np.mean([each[name] for each in scores])) for name in scores[0]}


def _discounted(gains: Sequence[int]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def _file(folder: Path, name: str) -> Path:
    """Return the path of a file, which may be compressed; raise UserError if there is none."""
    found = next((path for ending in ENDINGS if (path := folder / f"{name}{ending}").is_file()), None)
    if found is None:
        splits = sorted(path.name.partition(".")[0] for path in folder.glob("qrels/*.tsv*"))
        known = f"; its splits are {', '.join(splits)} (--split=NAME)" if name.startswith("qrels") and splits else ""
        raise UserError(f"{folder / name} is missing: a collection has corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv{known}")
    return found


def _read_texts(path: Path, fields: Sequence[str]) -> dict[str, str]:
    """Read the texts of a file by their ids: the given fields of each object, joined by spaces, of which the last is required."""
    texts: dict[str, str] = {}
    for where, record in read_objects(path, "utf-8"):
        name = _text(record, "_id", where)
        if name in texts:
            raise UserError(f"{where}: the _id {name!r} is there twice; keep one of the lines")
        parts = [_text(record, field, where) for field in fields if field in record or field == fields[-1]]
        texts[name] = " ".join(part for part in parts if part)
    if not texts:
        raise UserError(f"{path} has no texts")
    return texts


def _text(record: Mapping[str, Any], name: str, where: str) -> str:
    value = record.get(name)
    if not isinstance(value, str):
        kind = "missing" if name not in record else f"{value!r:.40}"
        raise UserError(f"{where}: {name} is {kind}, and must be a text")
    return replace_invalid(value).strip() if name != "_id" else value


def _judgements(path: Path) -> Iterable[tuple[str, str, str, int]]:
    """Yield the place, the query, the document and the relevance of each line of a file of judgements."""
    for number, line in enumerate(read_lines(path, "utf-8", strip=False), 1):
        where, cells = f"{path}:{number}", line.split("\t")
        if not line.strip() or (number == 1 and tuple(cells) == _COLUMNS):
            continue
        if len(cells) != len(_COLUMNS):
            raise UserError(f"{where}: {len(cells)} columns, and a judgement has {', '.join(_COLUMNS)}, separated by tabs")
        query, document, score = cells
        if not _SCORE.fullmatch(score):
            raise UserError(
                f"{where}: the score {score[:40]!r} is no whole number of at most 9 digits; write how relevant the document is, "
                "such as 0, 1 or 2"
            )
        yield where, query, document, int(score)
