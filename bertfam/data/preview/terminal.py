"""Lines of text for records and statistics, with or without colours."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from bertfam.data.preview.records import ROLES, by_position, is_retrieval, present_kinds, token_types
from bertfam.data.preview.statistics import Statistics
from bertfam.data.text_data import TEXT
from bertfam.pages.visible import visible
from bertfam.plurals import plural

LEGEND = "{word>[MASK]} masked, {word>other} replaced, {word} kept but predicted; each has weight 1 in the loss, or N with *N"
SHUFFLED_LEGEND = "{word~other} shuffled with its neighbours and predicted, {word~word} as well, back in its place by chance"
PERMUTED_LEGEND = (
    "{word@3} predicted as the third of the row, from the tokens that are not predicted and those before it in this order; each "
    "has weight 1 in the loss, or N with *N"
)
PAIRED_LEGEND = "{word:other another} the words that are predicted from a word, each beside words drawn at random"
RETRIEVAL_LEGEND = "the query of a row has to find the passage of its row among the passages of the whole batch"
DECODER_LEGEND = (
    "inputs: of the encoder, or of a decoder without one; start: the first input of the decoder, which then reads its own "
    "targets; targets: each has weight 1 in the loss, or N with *N"
)
_BAR = 40
_CODES = {
    "masked": "33",
    "random": "35",
    "kept": "36",
    "shuffled": "34",
    "permuted": "34",
    "paired": "34",
    "heading": "1",
    "quiet": "2",
}


@dataclass(frozen=True)
class Paint:
    """Text in terminal colours, or plain.

    Attributes:
      coloured: True to use colours.
    """

    coloured: bool

    def __call__(self, style: str, text: str) -> str:
        """Return the text in the colour of the style."""
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if self.coloured else text


def row_lines(record: Mapping[str, Any], number: int, paint: Paint) -> Iterator[str]:
    """Format a record: a line for the row, one for each example, and one for each run of tokens of the same type.

    For rows of decoders (`decoder_records`) the lines of an example are its inputs, the decoder's first input, and its targets.
    """
    if "predictions" not in record:
        yield paint("heading", f"row {number}: {decoder_summary(record)}")
        for example in record["examples"]:
            yield f"  example {example['segment']}: {decoder_example_summary(example)}"
            for label, pieces in decoder_parts(example):
                yield f"    {paint('quiet', f'{label:7}')} {' '.join(pieces)}"
        return
    pieces = _marked(record, paint)
    types = token_types(record)
    yield paint("heading", f"row {number}: {summary(record)}")
    for example in record["examples"]:
        yield f"  example {example['segment']}: {example_summary(example)}"
        places = range(example["begin"], example["end"])
        two = any(types[place] for place in places)
        for kind, run in groupby(places, lambda place: types[place]):
            name = f"{'ABCDEFGH'[kind % 8]} " if two else ""
            yield f"    {name}{' '.join(pieces[place] for place in run)}"


def legend(records: Sequence[Mapping[str, Any]]) -> str:
    """Return how to read the lines of records without labels."""
    if "predictions" not in records[0]:
        return DECODER_LEGEND
    if any(map(is_retrieval, records)):
        return RETRIEVAL_LEGEND
    kinds = present_kinds(records[0]["features"])
    return PERMUTED_LEGEND if "permuted" in kinds else PAIRED_LEGEND if "paired" in kinds else LEGEND


def summary(record: Mapping[str, Any]) -> str:
    """Describe a row."""
    count = len(record["examples"])
    if "label" in record:
        label = "no label" if record["label"] is None else f"label {record['label']!r}"
        return f"{label}, {plural(len(record['pieces']), 'token')}, {record['padding']} padding" + _from(record)
    if is_retrieval(record):
        roles = Counter(example["role"] for example in record["examples"])
        query, passage = ROLES
        tokens = sum(example["end"] - example["begin"] for example in record["examples"])
        texts = f"{plural(roles[query], query, 'queries')} and {plural(roles[passage], passage)}"
        padding = len(record["features"]["encoder_segment_ids"]) - tokens
        return f"{texts}, {plural(tokens, 'token')}, {padding} padding" + _from(record)
    return (
        f"{plural(count, 'example')}, {len(record['predictions'])} predicted of {plural(len(record['pieces']), 'token')}, "
        f"{record['padding']} padding" + _from(record)
    )


def example_summary(example: Mapping[str, Any]) -> str:
    """Describe an example."""
    label, role = example["next_sentence"], example.get("role")
    tokens = plural(example["end"] - example["begin"], "token")
    return (f"{role}, " if role else "") + tokens + (f", B is {label}" if label else "")


def decoder_summary(record: Mapping[str, Any]) -> str:
    """Describe a row for a decoder."""
    count = len(record["examples"])
    padding = " and ".join(f"{places} of the {part}" for part, places in record["padding"].items())
    return f"{plural(count, 'example')}, padding {padding}" + _from(record)


def decoder_example_summary(example: Mapping[str, Any]) -> str:
    """Describe the length of an example for a decoder."""
    inputs = "" if example["inputs"] is None else f"{plural(len(example['inputs']), 'input')}, "
    return f"{inputs}{plural(len(example['targets']), 'target')}"


def decoder_parts(example: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield the inputs, the decoder's first input and the targets of an example for a decoder, each with its label."""
    inputs = example["decoder_inputs"] if example["inputs"] is None else example["inputs"]
    yield "inputs", [visible(piece) for piece in inputs]
    if example["inputs"] is not None:
        yield "start", [visible(piece) for piece in example["decoder_inputs"][:1]]
    weighted = zip(example["targets"], example["weights"], strict=True)
    yield "targets", [visible(piece) if weight == 1 else f"{visible(piece)}*{weight:g}" for piece, weight in weighted]


def _from(record: Mapping[str, Any]) -> str:
    return "" if record["corpus"] == TEXT else f", from {record['corpus']}"


def statistics_lines(statistics: Statistics) -> Iterator[str]:
    """Format statistics: shares, numbers, corpora, and bars of the lengths."""
    yield f"{plural(statistics.rows, 'row')} of {statistics.size}:"
    yield "  " + "  ".join(f"{name} {value:.1%}" for name, value in statistics.shares().items())
    yield "  " + ", ".join(f"{value} {name}" for name, value in statistics.numbers().items())
    if len(statistics.corpora) > 1:
        yield "  from " + "  ".join(f"{name} {share:.1%}" for name, share in statistics.of_corpora().items())
    yield "lengths of the examples in tokens:"
    bins = statistics.histogram()
    most = max(count for _, _, count in bins) or 1
    width = len(str(statistics.length))
    for low, high, count in bins:
        bar = "#" * -(-count * _BAR // most)
        yield f"  {low:{width}}-{high:{width}} {bar:{_BAR}} {count / max(statistics.examples, 1):.1%}"


def _marked(record: Mapping[str, Any], paint: Paint) -> list[str]:
    """Return the pieces, with marks at those that are predicted."""
    pieces = [visible(piece) for piece in record["pieces"]]
    for position, prediction in by_position(record).items():
        original, seen = visible(prediction["original"]), pieces[position]
        kind, weight = prediction["kind"], prediction["weight"]
        after = {"kept": "", "shuffled": f"~{seen}", "permuted": f"@{prediction.get('order')}"}.get(kind, f">{seen}")
        text = f"{{{seen}:{original}}}" if kind == "paired" else f"{{{original}{after}}}"
        pieces[position] = paint(kind, text if weight == 1 else f"{text}*{weight:g}")
    return pieces
