"""HTML page of records and statistics: self-contained, without scripts, with all text escaped."""

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from bertfam.data.preview.page_style import STYLE
from bertfam.data.preview.statistics import Statistics
from bertfam.data.preview.terminal import decoder_example_summary, decoder_parts, decoder_summary, example_summary, summary
from bertfam.data.preview.visible import visible

_LEGEND = {
    "masked": "the input is the mask token",
    "random": "the input is a random token",
    "kept": "the input is left as it was",
    "shuffled": "the input is a token near by",
}
_NAMES = {
    "real_tokens": ("real tokens", "of the places, the others are padding"),
    "real_inputs": ("real inputs", "of the encoder's places, the others are padding"),
    "real_targets": ("real targets", "of the decoder's places, the others are padding"),
    "noise_marks": ("marks of noise", "of the inputs: mask tokens and sentinels"),
    "weighted": ("weighted", "of the targets: with a weight in the loss"),
    "unknown": ("unknown", "of the tokens: text that the vocabulary has no piece for"),
    "predicted": ("predicted", "of the tokens"),
    "masked": ("masked", "of the predicted"),
    "random": ("random", "of the predicted"),
    "kept": ("kept", "of the predicted"),
    "shuffled": ("shuffled", "of the predicted: tokens of a window that was shuffled"),
    "bounded": ("bounded", "of the predicted: tokens of spans with text on both sides, which are predicted from it too"),
    "next_sentence_random": ("random next", "of the labelled examples: B does not continue A"),
    "sentence_order_previous": ("swapped", "of the labelled examples: A continues B, or B is random where there is no more text"),
    "sentence_structure_next": ("next", "of the labelled examples: B continues A"),
    "sentence_structure_previous": ("previous", "of the labelled examples: A continues B; in the others B is random"),
}


def page(found: Statistics, records: Sequence[Mapping[str, Any]], title: str, about: Mapping[str, str]) -> str:
    """Render the page as HTML.

    Args:
      found: statistics over many rows.
      records: the rows to show.
      title: title of the page.
      about: settings of the rows, by name.
    """
    body = "".join(
        [
            f"<header><h1>{_text(title)}</h1><dl class='about'>",
            *(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in about.items()),
            "</dl></header><main>",
            *_statistics(found),
            *(_legend() if all("predictions" in record for record in records) else _DECODER_LEGEND),
            *(part for number, record in enumerate(records) for part in _row(record, number)),
            "</main>",
        ]
    )
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        "<meta name='viewport' content='width=device-width, initial-scale=1'><link rel='icon' href='data:,'>"
        f"<title>{html.escape(visible(title))}</title><style>{STYLE}</style></head>\n<body>{body}</body></html>\n"
    )


def _text(text: str) -> str:
    """Escape foreign text, show its invisible characters, and isolate its direction from the surroundings."""
    return f"<bdi>{html.escape(visible(text))}</bdi>"


def _statistics(found: Statistics) -> Iterator[str]:
    yield f"<section><h2>Statistics of {found.rows:,} rows</h2><div class='cards'>"
    for name, value in found.shares().items():
        label, note = _NAMES[name]
        yield _card(f"{value:.1%}", label, note)
    for name, number in found.numbers().items():
        yield _card(number, name, "made by one process" if name == "rows a second" else "")
    if len(found.corpora) > 1:
        for name, value in found.of_corpora().items():
            yield _card(f"{value:.1%}", name, "of the rows are from this corpus")
    yield "</div>"
    yield from _histogram(found)
    yield "</section>"


def _card(value: str, label: str, note: str) -> str:
    return f"<div class='card'><b>{html.escape(value)}</b> {_text(label)}<small>{html.escape(note)}</small></div>"


def _histogram(found: Statistics) -> Iterator[str]:
    """Yield an inline SVG histogram of the lengths of examples."""
    bins = found.histogram()
    most = max(count for _, _, count in bins) or 1
    wide, tall, foot = 64, 120, 36
    yield "<figure><figcaption>Lengths of the examples, in tokens</figcaption>"
    yield f"<svg viewBox='0 0 {wide * len(bins)} {tall + foot + 16}' role='img' aria-label='Lengths of the examples'>"
    for index, (low, high, count) in enumerate(bins):
        size, left = round(tall * count / most, 1), index * wide
        middle, top = left + wide // 2, round(16 + tall - size, 1)
        yield f"<rect x='{left + 6}' y='{top}' width='{wide - 12}' height='{size}' rx='2'/>"
        yield f"<text x='{middle}' y='{round(top - 4, 1)}'>{count / max(found.examples, 1):.1%}</text>"
        yield f"<text class='axis' x='{middle}' y='{tall + 34}'>{low}–{high}</text>"
    yield f"<line x1='0' x2='{wide * len(bins)}' y1='{tall + 16}' y2='{tall + 16}'/></svg></figure>"


def _legend() -> Iterator[str]:
    yield "<section class='legend'><h2>How to read the rows</h2><p>Each token is as the model sees it. Of those that are "
    yield "predicted the target stands above, and the kind and the weight in the loss below:</p><p class='tokens'>"
    for (kind, note), seen in zip(_LEGEND.items(), ("[MASK]", "other", "word", "another"), strict=True):
        yield f"{_predicted('word', seen, kind, 1.0)}<span class='note'>{note}</span>"
    yield "</p><p>Examples in one row do not see each other; A and B are token types; hatched is padding. "
    yield "Characters that cannot be seen are spelt out, as &lt;U+200B&gt;.</p></section>"


_DECODER_LEGEND = (
    "<section class='legend'><h2>How to read the rows</h2><p>An encoder, or a decoder alone, reads the inputs; a decoder behind "
    "an encoder begins with a token of its own and then reads what it writes. Every target weighs 1 in the loss, or N with *N. "
    "Examples in one row do not see each other. Characters that cannot be seen are spelt out, as &lt;U+200B&gt;.</p></section>",
)


def _decoder_row(record: Mapping[str, Any], number: int) -> Iterator[str]:
    yield f"<section class='row'><h2>Row {number} <small>{_text(decoder_summary(record))}</small></h2>"
    for example in record["examples"]:
        yield f"<article class='c{example['segment'] % 4}'><h3>Example {example['segment']} "
        yield f"<small>{_text(decoder_example_summary(example))}</small></h3>"
        for name in ("input_text", "target_text"):
            if example[name] is not None:
                yield f"<p class='text' dir='auto'><span class='note'>{name.split('_')[0]}</span> {_text(example[name])}</p>"
        for what, pieces in decoder_parts(example):
            yield f"<p class='tokens'><span class='type'>{what}</span>"
            yield from (f"<span class='t'>{_text(piece)}</span> " for piece in pieces)
            yield "</p>"
        yield "</article>"
    yield "</section>"


def _row(record: Mapping[str, Any], number: int) -> Iterator[str]:
    if "predictions" not in record:
        yield from _decoder_row(record, number)
        return
    yield f"<section class='row'><h2>Row {number} <small>{_text(summary(record))}</small></h2>"
    predicted = {found["position"]: found for found in record["predictions"]}
    for example in record["examples"]:
        yield f"<article class='c{example['segment'] % 4}'><h3>Example {example['segment']} "
        yield f"<small>segment {example['segment']}, {_text(example_summary(example))}</small></h3>"
        yield f"<p class='text' dir='auto'><span class='note'>text</span> {_text(example['text'])}</p><p class='tokens'>"
        yield from _tokens(record, range(example["begin"], example["end"]), predicted)
        yield "</p></article>"
    if record["padding"]:
        yield f"<p class='padding'>{record['padding']} places of padding, weight 0</p>"
    yield "</section>"


def _tokens(record: Mapping[str, Any], places: Iterable[int], predicted: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    types = record["features"]["encoder_token_type_ids"]
    for kind, run in groupby(places, lambda place: types[place]):
        yield f"<span class='type'>{'ABCDEFGH'[kind % 8]}</span>"
        for place in run:
            if place in predicted:
                found = predicted[place]
                yield _predicted(found["original"], found["input"], found["kind"], found["weight"])
            else:
                yield f"<span class='t'>{_text(record['pieces'][place])}</span> "


def _predicted(original: str, seen: str, kind: str, weight: float) -> str:
    note = f"{kind} ×{weight:g}"
    return f"<span class='t p {kind}'><span>{_text(original)}</span><b>{_text(seen)}</b><small>{note}</small></span> "
