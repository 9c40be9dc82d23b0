"""Jobs of Hugging Face datasets, tokenizers and the collator of transformers; each function is a job and returns figures."""

import itertools
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
from tokenizers import Tokenizer

from benchmarks.throughput import drop_from_page_cache, measure_throughput
from bertfam.data.corpora.formats import InputFormat
from bertfam.data.corpora.text_files import TextFiles

# Format -> loader of datasets that reads it.
LOADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sentences": ("text", {"sample_by": "paragraph"}),
    "paragraphs": ("text", {"sample_by": "paragraph"}),
    "lines": ("text", {"sample_by": "line"}),
    "jsonl": ("json", {}),
    "parquet": ("parquet", {"columns": ["text"]}),
}
_CHARACTERS = 1_000_000  # per batch, as in bertfam
_SEED = 1


def build(files: list[str], input_format: InputFormat, vocabulary: str, processes: int, output: str) -> dict[str, float]:
    """Build a tokenised dataset on disk, in which a row is a document with its sentences as lists of ids."""
    corpus = TextFiles(train=tuple(files), input_format=input_format)
    tokenizer = Tokenizer.from_file(str(Path(vocabulary) / "tokenizer.json"))
    tokenizer.encode_special_tokens = True

    def tokenise(batch: dict[str, list[str]]) -> dict[str, list[list[list[int]]]]:
        lines = ([line for line in map(str.strip, text.splitlines()) if line] for text in batch["text"])
        documents = [corpus.sentences(document) for document in lines]
        sentences = [sentence for document in documents for sentence in document]
        ids = (encoding.ids for encoding in tokenizer.encode_batch_fast(sentences, add_special_tokens=False))
        tokenised = ([sentence for sentence in itertools.islice(ids, len(document)) if sentence] for document in documents)
        return {"sentences": list(filter(None, tokenised))}

    loader, settings = LOADERS[input_format]
    workers = processes if processes > 1 else None
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=Path(output).parent) as cache:
        text = datasets.load_dataset(
            loader,
            data_files={"train": files},
            split="train",
            cache_dir=cache,
            num_proc=min(processes, len(files)) if workers else None,
            **settings,
        )
        loaded = time.perf_counter()
        tokenised = text.map(
            tokenise,
            batched=True,
            batch_size=max(1, _CHARACTERS * len(text) // max(1, text.data.nbytes)),
            num_proc=workers,
            remove_columns=text.column_names,
            features=datasets.Features({"sentences": datasets.List(datasets.List(datasets.Value("int32")))}),
        )
        mapped = time.perf_counter()
        tokenised.save_to_disk(output, num_proc=workers)
        seconds = time.perf_counter() - begin
    tokens = sum(len(chunk.flatten().flatten()) for chunk in tokenised.data.column("sentences").chunks)
    return {
        "seconds": seconds,
        "load_seconds": loaded - begin,
        "map_seconds": mapped - loaded,
        "tokens": tokens,
        "documents": len(tokenised),
        "tokens_per_second": tokens / seconds,
        "disk_bytes": sum(path.stat().st_size for path in Path(output).rglob("*") if path.is_file()),
    }


def sentence_pairs(
    tokenised: str, vocabulary: str, length: int, batch_size: int, tensors: str, seconds: float
) -> dict[str, float]:
    """Make batches of sentence pairs, which are built once in memory and masked anew each time."""
    collator = _collator(vocabulary, tensors)
    begin = time.perf_counter()
    documents = datasets.load_from_disk(tokenised)["sentences"][:]
    examples = list(_pairs(documents, length, collator.tokenizer, random.Random(_SEED)))
    prepared = time.perf_counter() - begin
    figures = _steady(examples, collator, batch_size, seconds)
    return figures | {"prepare_seconds": prepared, "rows": len(examples)}


def blocks(tokenised: str, vocabulary: str, length: int, batch_size: int, tensors: str, seconds: float) -> dict[str, float]:
    """Make batches of blocks, cut from the concatenated documents, each [CLS] text [SEP], and masked anew each time."""
    collator = _collator(vocabulary, tensors)
    with tempfile.TemporaryDirectory(dir=Path(tokenised).parent) as cache:
        begin = time.perf_counter()
        grouped = _group(tokenised, length, collator.tokenizer, str(Path(cache) / "blocks.arrow"))
        prepared = time.perf_counter() - begin
        figures = _steady(grouped, collator, batch_size, seconds)
    return figures | {"prepare_seconds": prepared, "rows": len(grouped)}


def save_blocks(tokenised: str, vocabulary: str, length: int, output: str) -> dict[str, float]:
    """Write the blocks to disk, for `seek`."""
    with tempfile.TemporaryDirectory(dir=Path(tokenised).parent) as cache:
        _group(tokenised, length, _collator(vocabulary, "np").tokenizer, str(Path(cache) / "blocks.arrow")).save_to_disk(output)
    return {}


def seek(blocks: str, vocabulary: str, batch_size: int, step: int) -> dict[str, float]:
    """Open prepared blocks, shuffled anew each epoch, and make the batch of a step."""
    collator = _collator(vocabulary, "np")
    drop_from_page_cache(blocks)
    begin = time.perf_counter()
    dataset = datasets.load_from_disk(blocks)
    epoch, place = divmod(step * batch_size, len(dataset))
    shuffled = dataset.shuffle(seed=epoch, keep_in_memory=True)
    opened = time.perf_counter()
    collator(shuffled.__getitems__([(place + row) % len(dataset) for row in range(batch_size)]))
    first = time.perf_counter()
    collator(shuffled.__getitems__([(place // 2 + row) % len(dataset) for row in range(batch_size)]))
    return {"seconds": first - begin, "prepare_seconds": opened - begin, "next_seconds": time.perf_counter() - first}


def _collator(vocabulary: str, tensors: str) -> Any:
    """Return the masking collator of transformers with its defaults, 15 % and 80/10/10; `tensors` is "np" or "pt"."""
    import torch
    from transformers import AutoTokenizer, DataCollatorForLanguageModeling

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(vocabulary)
    return DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, return_tensors=tensors, seed=_SEED)


def _steady(examples: Any, collator: Any, batch_size: int, seconds: float) -> dict[str, float]:
    from torch.utils.data import DataLoader

    loader = DataLoader(examples, batch_size, shuffle=True, collate_fn=collator, num_workers=0)
    endless = itertools.chain.from_iterable(itertools.repeat(loader))
    return measure_throughput(
        endless, lambda batch: len(batch["input_ids"]), lambda batch: int(batch["attention_mask"].sum()), seconds
    )


def _group(tokenised: str, length: int, tokenizer: Any, file: str) -> datasets.Dataset:
    """Return blocks with masks of the special tokens, so that the collator need not find them; remainders are dropped."""
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id

    def group(batch: dict[str, list[list[list[int]]]]) -> dict[str, list[list[int]]]:
        ids: list[int] = []
        special: list[int] = []
        for document in batch["sentences"]:
            text = list(itertools.chain.from_iterable(document))
            ids += [cls, *text, sep]
            special += [1, *itertools.repeat(0, len(text)), 1]
        begins = range(0, len(ids) // length * length, length)
        return {
            "input_ids": [ids[begin : begin + length] for begin in begins],
            "special_tokens_mask": [special[begin : begin + length] for begin in begins],
        }

    dataset = datasets.load_from_disk(tokenised)
    features = {"input_ids": datasets.List(datasets.Value("int32")), "special_tokens_mask": datasets.List(datasets.Value("int8"))}
    return dataset.map(
        group,
        batched=True,
        remove_columns=dataset.column_names,
        features=datasets.Features(features),
        cache_file_name=file,
    )


def _pairs(documents: list[list[list[int]]], length: int, tokenizer: Any, draw: random.Random) -> Iterator[dict[str, Any]]:
    """Yield BERT's pairs with next-sentence labels, document by document (Devlin et al. 2019, appendix A.2)."""
    cls, sep, room = tokenizer.cls_token_id, tokenizer.sep_token_id, length - 3
    for number, document in enumerate(documents):
        target = room if draw.random() >= 0.1 else draw.randint(2, room)
        begin = place = size = 0
        while place < len(document):
            size += len(document[place])
            place += 1
            if size < target and place < len(document):
                continue
            count = place - begin
            split = begin + (draw.randint(1, count - 1) if count > 1 else 1)
            a = list(itertools.chain.from_iterable(document[begin:split]))
            is_random = count == 1 or draw.random() < 0.5
            if is_random:
                other = draw.randrange(len(documents) - 1)
                b = _from(documents[other + (other >= number)], target - len(a), draw)
                place = split  # the sentences that B does not use start the next chunk
            else:
                b = list(itertools.chain.from_iterable(document[split:place]))
            _trim(a, b, room, draw)
            yield {
                "input_ids": [cls, *a, sep, *b, sep],
                "token_type_ids": [0] * (len(a) + 2) + [1] * (len(b) + 1),
                "special_tokens_mask": [1] + [0] * len(a) + [1] + [0] * len(b) + [1],
                "next_sentence_label": int(is_random),
            }
            begin, size = place, 0


def _from(document: list[list[int]], wanted: int, draw: random.Random) -> list[int]:
    """Return at least `wanted` tokens from a random sentence on, if there are enough."""
    tokens: list[int] = []
    for sentence in itertools.islice(document, draw.randrange(len(document)), None):
        tokens += sentence
        if len(tokens) >= wanted:
            break
    return tokens


def _trim(a: list[int], b: list[int], room: int, draw: random.Random) -> None:
    """Shorten the longer segment until both fit, removing each token from the front or the back at random."""
    excess = max(0, len(a) + len(b) - room)
    uneven = min(excess, abs(len(a) - len(b)))
    even = excess - uneven
    cuts = (uneven if len(a) > len(b) else 0) + even // 2, (uneven if len(b) >= len(a) else 0) + (even + 1) // 2
    for tokens, cut in zip((a, b), cuts, strict=True):
        if cut:
            front = draw.getrandbits(cut).bit_count()
            del tokens[:front]
            del tokens[len(tokens) - (cut - front) :]
