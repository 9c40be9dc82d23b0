"""Records and statistics as lines of text, with or without colours."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from bertfam.data.preview.statistics import Statistics
from bertfam.data.preview.visible import visible
from bertfam.data.text_data import TEXT

LEGEND = "{word>[MASK]} masked, {word>other} replaced, {word} kept but predicted; each weighs 1 in the loss, or N with *N"
SHUFFLED_LEGEND = "{word~other} shuffled with its neighbours and predicted, {word~word} too, in its old place by chance"
_BAR = 40
_CODES = {"masked": "33", "random": "35", "kept": "36", "shuffled": "34", "heading": "1", "quiet": "2"}


@dataclass(frozen=True)
class Paint:
    """Colours of a terminal, or none."""

    coloured: bool

    def __call__(self, what: str, text: str) -> str:
        return f"\x1b[{_CODES[what]}m{text}\x1b[0m" if self.coloured else text


def row_lines(record: Mapping[str, Any], number: int, paint: Paint) -> Iterator[str]:
    """A record: a line for the row, one for each example, and one for each run of tokens of the same type."""
    pieces = _marked(record, paint)
    types = record["features"]["encoder_token_type_ids"]
    yield paint("heading", f"row {number}: {summary(record)}")
    for example in record["examples"]:
        yield f"  example {example['segment']}: {example_summary(example)}"
        places = range(example["begin"], example["end"])
        two = any(types[place] for place in places)
        for kind, run in groupby(places, lambda place: types[place]):
            name = f"{'ABCDEFGH'[kind % 8]} " if two else ""
            yield f"    {name}{' '.join(pieces[place] for place in run)}"


def summary(record: Mapping[str, Any]) -> str:
    """What is in a row, in words."""
    count = len(record["examples"])
    return (
        f"{count} example{'s' * (count != 1)}, {len(record['predictions'])} predicted of {len(record['pieces'])} tokens, "
        f"{record['padding']} padding" + ("" if record["corpus"] == TEXT else f", from {record['corpus']}")
    )


def example_summary(example: Mapping[str, Any]) -> str:
    """What an example is, in words."""
    label = example["next_sentence"]
    return f"{example['end'] - example['begin']} tokens" + (f", B is {label}" if label else "")


def statistics_lines(found: Statistics) -> Iterator[str]:
    """Statistics: shares, numbers, corpora, and bars of the lengths."""
    yield f"{found.rows:,} rows of {found.length} tokens:"
    yield "  " + "  ".join(f"{name} {value:.1%}" for name, value in found.shares().items())
    yield "  " + ", ".join(f"{value} {name}" for name, value in found.numbers().items())
    if len(found.corpora) > 1:
        yield "  from " + "  ".join(f"{name} {share:.1%}" for name, share in found.of_corpora().items())
    yield "lengths of the examples in tokens:"
    bins = found.histogram()
    most = max(count for _, _, count in bins) or 1
    width = len(str(found.length))
    for low, high, count in bins:
        bar = "#" * -(-count * _BAR // most)
        yield f"  {low:{width}}-{high:{width}} {bar:{_BAR}} {count / max(found.examples, 1):.1%}"


def _marked(record: Mapping[str, Any], paint: Paint) -> list[str]:
    """The pieces, with marks at those that are predicted."""
    pieces = [visible(piece) for piece in record["pieces"]]
    for found in record["predictions"]:
        original, seen, weight = visible(found["original"]), pieces[found["position"]], found["weight"]
        kept, between = found["kind"] == "kept", "~" if found["kind"] == "shuffled" else ">"
        text = f"{{{original}}}" if kept else f"{{{original}{between}{seen}}}"
        pieces[found["position"]] = paint(found["kind"], text if weight == 1 else f"{text}*{weight:g}")
    return pieces
