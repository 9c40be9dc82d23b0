"""Comparison of ids and offsets of every kind of vocabulary with those of the libraries, on the lines of a corpus.

    python -m benchmarks.vocabulary_parity 'corpus/*.txt.gz' --vocab=bert --vocab=gpt2 --lines=50000

bertfam reads each folder given by --vocab, and one vocabulary learnt here for each kind. The reference is built from the same raw
files by `tokenizers` or `sentencepiece` alone. If transformers is installed, AutoTokenizer also reads what bertfam saves. Lines
are read from all files in turn.
"""

import glob
import gzip
import json
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer
from tokenizers.processors import ByteLevel

from bertfam.arguments import ScriptParser
from bertfam.data import vocabularies
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.data.vocabularies.learners import make_learner

# name -> settings with which a vocabulary of --size pieces is learnt
LEARNT: dict[str, dict[str, Any]] = {
    "wordpiece cased": {"kind": "wordpiece", "layout": LAYOUTS["bert"], "cased": True},
    "unigram": {"kind": "unigram", "layout": LAYOUTS["t5"]},
    "unigram lossless": {
        "kind": "unigram", "layout": LAYOUTS["albert"], "normalizer": "identity", "keep_spaces": True, "byte_fallback": True,
    },
    "bpe": {"kind": "bpe", "layout": LAYOUTS["xlnet"]},
    "byte_bpe": {"kind": "byte_bpe", "layout": LAYOUTS["roberta"]},
}  # fmt: skip

LINES_PER_BATCH = 1000

Encode = Callable[[Sequence[str]], list[tuple[list[int], list[tuple[int, int]]]]]


def main() -> None:
    """Compare all vocabularies and print the results."""
    parser = ScriptParser(description=__doc__)
    parser.add_argument("corpus", nargs="+", metavar="GLOB", help="text files, plain or gzipped")
    parser.add_argument("--vocab", action="append", default=[], metavar="DIR", help="vocabulary folder; repeatable")
    parser.add_argument("--lines", type=int, default=50_000, help="number of lines to compare (default: %(default)s)")
    parser.add_argument("--size", type=int, default=8000, help="size of the learnt vocabularies (default: %(default)s)")
    args = parser.parse_args()
    lines = read(args.corpus, args.lines)
    print(f"{len(lines):,} lines, {sum(map(len, lines)):,} characters", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folders = {folder: Path(folder) for folder in args.vocab}
        for name, settings in LEARNT.items():
            folders[name] = Path(scratch) / name.replace(" ", "-")
            learner = make_learner(size=args.size, **settings)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                learner.learn(learner.count(lines)).save(folders[name])
        for name, folder in folders.items():
            compare(name, folder, lines, Path(scratch) / "saved")


def read(patterns: Sequence[str], wanted: int) -> list[str]:
    """Read `wanted` lines that are not blank, from each file in turn."""
    names = sorted({name for pattern in patterns for name in glob.glob(pattern)})
    open_files = [iter(lines_of(name)) for name in names]
    lines: list[str] = []
    while open_files and len(lines) < wanted:
        for file in list(open_files):
            line = next(file, None)
            if line is None:
                open_files.remove(file)
            else:
                lines.append(line)
    return lines[:wanted]


def lines_of(name: str) -> Iterator[str]:
    """Yield the lines of a file that are not blank, without surrounding spaces."""
    with gzip.open(name, "rt", encoding="utf-8") if name.endswith(".gz") else open(name, encoding="utf-8") as file:
        yield from (line.strip() for line in file if line.strip())


def compare(name: str, folder: Path, lines: list[str], saved: Path) -> None:
    """Print the number of lines that differ."""
    vocabulary, library = vocabularies.load(folder), independent(folder)
    vocabulary.save(saved / folder.name)
    auto = auto_tokenizer(saved / folder.name)
    controls = [*vocabulary.token_ids.special, *vocabulary.token_ids.sentinels]
    counts: Counter[str] = Counter()
    seconds = 0.0
    for begin in range(0, len(lines), LINES_PER_BATCH):
        chunk = lines[begin : begin + LINES_PER_BATCH]
        started = time.monotonic()
        ours = [ids.tolist() for ids in vocabulary.encode_batch(chunk)]
        seconds += time.monotonic() - started
        counts["tokens"] += sum(map(len, ours))
        counts["unknown"] += sum(ids.count(vocabulary.token_ids.unk) for ids in ours)
        for line, ids, (their_ids, their_offsets) in zip(chunk, ours, library(chunk), strict=True):
            counts["ids"] += ids != their_ids
            counts["offsets"] += [tuple(pair) for pair in vocabulary.encode(line).offsets.tolist()] != their_offsets
        if auto is not None:
            theirs = auto(chunk, add_special_tokens=False)["input_ids"]
            # AutoTokenizer always encodes typed control tokens as such, while bertfam encodes them as text here.
            typed = [any(piece in line for piece in vocabulary.pieces(controls)) for line in chunk]
            counts["auto"] += sum(not skip and a != b for a, b, skip in zip(ours, theirs, typed, strict=True))
    print(
        f"{name}: {vocabulary.size:,} pieces, {counts['tokens']:,} tokens ({counts['unknown'] / counts['tokens']:.2%} "
        f"unknown) in {seconds:.1f} s; lines with other ids {counts['ids']}, with other offsets {counts['offsets']}"
        + (f", with other ids of AutoTokenizer {counts['auto']}" if auto is not None else ""),
        flush=True,
    )


def auto_tokenizer(folder: Path) -> Any:
    """Load a folder with AutoTokenizer; return None if transformers is not installed."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        return None
    return AutoTokenizer.from_pretrained(folder)


def independent(folder: Path) -> Encode:
    """Return the encoder that the library itself builds from the raw files of a folder."""
    config = folder / "tokenizer_config.json"
    settings = json.loads(config.read_text()) if config.exists() else {}
    if (model := next(folder.glob("*.model"), None)) is not None:
        processor = SentencePieceProcessor(model_file=str(model))

        def pieces(lines: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
            encoded = [processor.encode(line, out_type="immutable_proto").pieces for line in lines]
            return [([piece.id for piece in line], [(piece.begin, piece.end) for piece in line]) for line in encoded]

        return pieces
    if (folder / "vocab.txt").exists():
        tokenizer = BertWordPieceTokenizer(
            str(folder / "vocab.txt"),
            lowercase=settings.get("do_lower_case", True),
            strip_accents=settings.get("strip_accents"),
            handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        )
    else:
        trims = settings.get("tokenizer_class") == "RobertaTokenizer"
        tokenizer = ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
        tokenizer.post_processor = ByteLevel(add_prefix_space=False, trim_offsets=trims)

    def encode(lines: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        encodings = tokenizer.encode_batch(list(lines), add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]

    return encode


if __name__ == "__main__":
    main()
