"""HTML page of records and statistics: self-contained, without scripts, with all text escaped."""

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from bertfam.data.preview.records import by_position, is_retrieval, token_types
from bertfam.data.preview.statistics import Statistics
from bertfam.data.preview.terminal import decoder_example_summary, decoder_parts, decoder_summary, example_summary, summary
from bertfam.pages.document import document, isolated
from bertfam.plurals import plural

_LEGEND = {
    "masked": "the input is the mask token",
    "random": "the input is a random token",
    "kept": "the input is the original token",
    "shuffled": "the input is a neighbouring token",
    "permuted": "predicted from the tokens before it in the order of the permutation",
    "paired": "the words above are predicted from it",
}
_NAMES = {
    "real_tokens": ("real tokens", "of the positions; the others are padding"),
    "real_inputs": ("real inputs", "of the encoder's positions; the others are padding"),
    "real_targets": ("real targets", "of the decoder's positions; the others are padding"),
    "noise_marks": ("marks of noise", "of the inputs: mask tokens and sentinels"),
    "weighted": ("weighted", "of the targets: those with a weight in the loss"),
    "unknown": ("unknown", "of the tokens: text without a piece in the vocabulary"),
    "predicted": ("predicted", "of the tokens"),
    "masked": ("masked", "of the predicted"),
    "random": ("random", "of the predicted"),
    "kept": ("kept", "of the predicted"),
    "shuffled": ("shuffled", "of the predicted: tokens of shuffled windows"),
    "permuted": ("permuted", "of the predicted: in the order of a permutation"),
    "paired": ("paired", "of the predicted: a word near another, beside words drawn at random"),
    "bounded": ("bounded", "of the predicted: tokens of spans with text on both sides, from which they are predicted as well"),
    "next_sentence_random": ("random next", "of the labelled examples: B does not continue A"),
    "sentence_order_previous": (
        "swapped",
        "of the labelled examples: A continues B, or B is random because there is no more text",
    ),
    "sentence_structure_next": ("next", "of the labelled examples: B continues A"),
    "sentence_structure_previous": ("previous", "of the labelled examples: A continues B; in the others B is random"),
}


def page(statistics: Statistics, records: Sequence[Mapping[str, Any]], title: str, about: Mapping[str, str]) -> str:
    """Render the page as HTML.

    Args:
      statistics: Statistics over many rows.
      records: Rows to show.
      title: Title of the page.
      about: Settings of the rows, by name.
    """
    body = "".join(
        [
            f"<header><h1>{isolated(title)}</h1><dl class='about'>",
            *(f"<div><dt>{isolated(name)}</dt><dd>{isolated(value)}</dd></div>" for name, value in about.items()),
            "</dl></header><main>",
            *_statistics(statistics),
            legend_html(records),
            *(row_html(record, number) for number, record in enumerate(records)),
            "</main>",
        ]
    )
    return document(title, body)


def _statistics(statistics: Statistics) -> Iterator[str]:
    yield f"<section><h2>Statistics of {plural(statistics.rows, 'row')}</h2><div class='cards'>"
    for name, value in statistics.shares().items():
        label, note = _NAMES[name]
        yield _card(f"{value:.1%}", label, note)
    for name, number in statistics.numbers().items():
        yield _card(number, name, "made by one process" if name == "rows a second" else "")
    if len(statistics.corpora) > 1:
        for name, value in statistics.of_corpora().items():
            yield _card(f"{value:.1%}", name, "of the rows are from this corpus")
    yield "</div>"
    yield from _histogram(statistics)
    yield "</section>"


def _card(value: str, label: str, note: str) -> str:
    return f"<div class='card'><b>{html.escape(value)}</b> {isolated(label)}<small>{html.escape(note)}</small></div>"


def _histogram(statistics: Statistics) -> Iterator[str]:
    """Yield an inline SVG histogram of the lengths of examples."""
    bins = statistics.histogram()
    most = max(count for _, _, count in bins) or 1
    wide, tall, foot = 64, 120, 36
    yield "<figure><figcaption>Lengths of the examples, in tokens</figcaption>"
    yield f"<svg viewBox='0 0 {wide * len(bins)} {tall + foot + 16}' role='img' aria-label='Lengths of the examples'>"
    for index, (low, high, count) in enumerate(bins):
        size, left = round(tall * count / most, 1), index * wide
        middle, top = left + wide // 2, round(16 + tall - size, 1)
        yield f"<rect x='{left + 6}' y='{top}' width='{wide - 12}' height='{size}' rx='2'/>"
        yield f"<text x='{middle}' y='{round(top - 4, 1)}'>{count / max(statistics.examples, 1):.1%}</text>"
        yield f"<text class='axis' x='{middle}' y='{tall + 34}'>{low}–{high}</text>"
    yield f"<line x1='0' x2='{wide * len(bins)}' y1='{tall + 16}' y2='{tall + 16}'/></svg></figure>"


def legend_html(records: Sequence[Mapping[str, Any]]) -> str:
    """Return how to read the rows of records, as HTML."""
    if any("predictions" not in record for record in records):
        return _DECODER_LEGEND
    return _RETRIEVAL_LEGEND if any(is_retrieval(record) for record in records) else "".join(_legend())


def row_html(record: Mapping[str, Any], number: int) -> str:
    """Return a row as HTML.

    Args:
      record: its record, see `records` and `decoder_records`.
      number: its number.
    """
    return "".join(_row(record, number))


def _legend() -> Iterator[str]:
    yield "<section class='legend'><h2>How to read the rows</h2><p>Each token is shown as the model sees it. At predicted "
    yield "tokens the target is above, and the kind and the weight in the loss are below:</p><p class='tokens'>"
    for (kind, note), seen in zip(_LEGEND.items(), ("[MASK]", "other", "word", "another", "word", "word"), strict=True):
        yield f"{_predicted('word', seen, kind, 1.0)}<span class='note'>{note}</span>"
    yield "</p><p>Examples in one row do not attend to each other; A and B are token types; hatched areas are padding. "
    yield "Invisible characters are spelt out, as &lt;U+200B&gt;.</p></section>"


_DECODER_LEGEND = (
    "<section class='legend'><h2>How to read the rows</h2><p>The inputs are those of the encoder, or of a decoder without one. "
    "The decoder of an encoder-decoder starts with a token of its own and then reads its targets. Every target has weight 1 in "
    "the loss, or N with *N. Examples in one row do not attend to each other. Invisible characters are spelt out, as "
    "&lt;U+200B&gt;.</p></section>"
)


_RETRIEVAL_LEGEND = (
    "<section class='legend'><h2>How to read the rows</h2><p>A row has a query and passages of a dual encoder, each read by "
    "itself. The query has to find the first passage of its row among the passages of the whole batch. Invisible characters "
    "are spelt out, as &lt;U+200B&gt;.</p></section>"
)


def _decoder_row(record: Mapping[str, Any], number: int) -> Iterator[str]:
    yield f"<section class='row'><h2>Row {number} <small>{isolated(decoder_summary(record))}</small></h2>"
    for example in record["examples"]:
        yield f"<article class='c{example['segment'] % 4}'><h3>Example {example['segment']} "
        yield f"<small>{isolated(decoder_example_summary(example))}</small></h3>"
        for name in ("input_text", "target_text"):
            if example[name] is not None:
                yield f"<p class='text' dir='auto'><span class='note'>{name.split('_')[0]}</span> {isolated(example[name])}</p>"
        for label, pieces in decoder_parts(example):
            yield f"<p class='tokens'><span class='type'>{label}</span>"
            yield from (f"<span class='t'>{isolated(piece)}</span> " for piece in pieces)
            yield "</p>"
        yield "</article>"
    yield "</section>"


def _row(record: Mapping[str, Any], number: int) -> Iterator[str]:
    if "predictions" not in record:
        yield from _decoder_row(record, number)
        return
    yield f"<section class='row'><h2>Row {number} <small>{isolated(summary(record))}</small></h2>"
    predicted = by_position(record)
    for example in record["examples"]:
        yield f"<article class='c{example['segment'] % 4}'><h3>Example {example['segment']} "
        yield f"<small>segment {example['segment']}, {isolated(example_summary(example))}</small></h3>"
        yield f"<p class='text' dir='auto'><span class='note'>text</span> {isolated(example['text'])}</p><p class='tokens'>"
        yield from _tokens(record, range(example["begin"], example["end"]), predicted)
        yield "</p></article>"
    if record["padding"] and not is_retrieval(record):  # each of its texts has padding of its own
        yield f"<p class='padding'>{record['padding']} positions of padding, weight 0</p>"
    yield "</section>"


def _tokens(record: Mapping[str, Any], places: Iterable[int], predicted: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    types = token_types(record)
    for kind, run in groupby(places, lambda place: types[place]):
        yield f"<span class='type'>{'ABCDEFGH'[kind % 8]}</span>"
        for place in run:
            if place in predicted:
                prediction = predicted[place]
                yield _predicted(**{name: prediction[name] for name in _SHOWN if name in prediction})
            else:
                yield f"<span class='t'>{isolated(record['pieces'][place])}</span> "


_SHOWN = ("original", "input", "kind", "weight", "order")


def _predicted(original: str, input: str, kind: str, weight: float, order: int | None = None) -> str:
    note = f"{kind} ×{weight:g}" if order is None else f"{kind} @{order} ×{weight:g}"
    return f"<span class='t p {kind}'><span>{isolated(original)}</span><b>{isolated(input)}</b><small>{note}</small></span> "
