"""`bertfam embed`: embeddings of texts by an encoder, from file to file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing
from itertools import chain, islice
from typing import TYPE_CHECKING

from bertfam.commands import flags
from bertfam.commands.finetune import add_records, check_format, text_files
from bertfam.errors import UserError

if TYPE_CHECKING:
    from bertfam.embedding.embedder import Embedder
    from bertfam.embedding.vector_file import VectorFile

SUMMARY = "embed texts by an encoder, as vectors"
EXAMPLE = """\
  bertfam embed --model_dir=runs/quickstart/model --input=texts.tsv --text=sentence --output=vectors.npy
The output has one vector per text, in the order of the input: float32[texts, width] in a .npy file, an object with "embedding"
per line in a .jsonl file, a column "embedding" in a .parquet file. The same command again resumes after an interruption. Files of
sentence-transformers in a Hugging Face folder say how its texts are pooled, normalised and cut."""

_AT_ONCE = 2048  # texts between two writes
POOLINGS = ("mean", "cls", "max")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_encoder(parser)
    parser.add_argument(
        "--network", metavar="NAME", help="network of a folder that has several, such as generator, or the encoder of a T5"
    )
    group = parser.add_argument_group("texts")
    group.add_argument(
        "--input", type=flags.files, action="append", default=[], required=True, metavar="GLOB", help="files of texts; repeatable"
    )
    group.add_argument("--text", default="text", metavar="COLUMN", help="column of the text (default: text)")
    add_records(group)
    group = parser.add_argument_group("embeddings")
    group.add_argument("--output", type=flags.path, required=True, metavar="FILE", help="file to write: .npy, .jsonl or .parquet")
    add_settings(group)
    group.add_argument("--batch_size", type=int, default=32, metavar="N", help="texts at a time (default: 32)")


def add_encoder(parser: argparse.ArgumentParser, description: str = "folder of a run, or a Hugging Face folder") -> None:
    """Declare the flags that name an encoder: its folder, a step of it, and the modules that it needs."""
    parser.add_argument("--model_dir", type=flags.folder, required=True, metavar="DIR", help=description)
    flags.add_step(parser)
    flags.add_average(parser)
    flags.add_module_import(parser)


def add_settings(group: argparse._ArgumentGroup) -> None:
    """Declare the flags about how an encoder embeds texts."""
    add_pooling(group)
    group.add_argument(
        "--length",
        type=int,
        metavar="TOKENS",
        help="where texts are cut (default: as the folder says, or the rows that the run was trained with)",
    )


def add_pooling(group: argparse._ArgumentGroup) -> None:
    """Declare --pooling and --normalize."""
    group.add_argument(
        "--pooling",
        choices=POOLINGS,
        help="mean or max over the hidden states of all tokens, or the one at [CLS] (default: as the folder's "
        "1_Pooling/config.json says, or the objective of the run; else mean)",
    )
    group.add_argument("--normalize", action="store_true", help="scale vectors to length 1 (default: as the folder says)")


def main(args: argparse.Namespace) -> int:
    """Embed; return the exit status."""
    check_settings(args)
    check_format(args, "texts")
    flags.check_output_file(args, "output")
    flags.check_model_dir(args)

    from bertfam.embedding.vector_file import VectorFile
    from bertfam.plurals import plural
    from bertfam.training.trained_networks import find_step

    corpus = text_files(args, args.input)
    flags.prepare_model(args)
    step = find_step(args.model_dir, flags.step_of(args), average=args.average)
    embedder = open_embedder(args, step)
    settings = {name: getattr(args, name) for name in ("network", "average", "pooling", "normalize", "length")}
    source = {"model": str(args.model_dir), "step": step, "text": corpus.fingerprint(), **settings}
    texts = (text for path in corpus.files("train") for _, (text,), _ in corpus.records(path))
    if (first := next(texts, None)) is None:
        raise UserError(f"--input={args.input[0]} has no texts")
    with closing(VectorFile(args.output, source, embedder.width)) as file:
        count, cut = _embed(args, embedder, chain([first], texts), file)
        file.finish()
    width, description = embedder.width, embedder.settings.description
    print(f"wrote {args.output}: {plural(count, 'vector')} of {width} numbers ({description})")
    if cut:
        print(
            f"{plural(cut, 'text')} cut after {embedder.length} tokens: raise --length to keep them whole, if the model allows it"
        )
    return 0


def check_settings(args: argparse.Namespace) -> None:
    """Raise UserError for numbers below 1, before anything is read."""
    for flag in ("length", "batch_size"):
        if (number := getattr(args, flag, None)) is not None and number < 1:
            raise UserError(f"--{flag}={number} is less than 1")


def open_embedder(args: argparse.Namespace, step: int | None) -> Embedder:
    """Open the encoder of --model_dir, at a step of its run."""
    from bertfam.embedding.embedder import open_embedder

    how = {"pooling": args.pooling, "normalize": args.normalize or None, "length": args.length}
    return open_embedder(args.model_dir, step=step, network=getattr(args, "network", None), average=args.average, **how)


def _embed(args: argparse.Namespace, embedder: Embedder, texts: Iterator[str], file: VectorFile) -> tuple[int, int]:
    """Embed all texts that the file lacks and append their vectors; return the numbers of all texts and of texts cut now."""
    from tqdm import tqdm

    count, cut = 0, 0
    with tqdm(desc="embedding", unit=" texts", disable=None, leave=False) as progress:
        while chunk := list(islice(texts, _AT_ONCE)):
            remaining = chunk[max(0, min(file.done - count, len(chunk))) :]
            count += len(chunk)
            progress.update(len(chunk))
            if remaining:
                vectors, cut_here = embedder.embed(remaining, args.batch_size)
                file.append(vectors)
                cut += cut_here
    return count, cut
