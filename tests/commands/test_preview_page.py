"""The page of `bertfam preview --html`, and what a browser makes of it."""

import json
import re
from collections import Counter
from html.parser import HTMLParser

import pytest
from browser import needs_chromium, opened
from command_line import listing

from bertfam import cli
from bertfam.data.preview.page import page
from bertfam.data.preview.statistics import Statistics

HOSTILE = '<script>alert(1)</script> & "onmouseover=alert(2)" <img src=x onerror=alert(3)> שלום \u202eevil\u200b</style></bdi>'
ALLOWED = {
    *("html", "head", "meta", "link", "title", "style", "body", "header", "h1", "h2", "h3", "dl", "div", "dt", "dd", "main"),
    *("section", "b", "small", "figure", "figcaption", "svg", "rect", "text", "line", "p", "span", "bdi", "article"),
}


class Page(HTMLParser):
    """The elements of a page with their attributes, and its text without the spaces."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.text, self.bdi, self.inside = [], "", [], False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "bdi":
            self.bdi.append("")
            self.inside = True

    def handle_endtag(self, tag):
        self.inside &= tag != "bdi"

    def handle_data(self, data):
        self.text += "".join(data.split())
        if self.inside:
            self.bdi[-1] += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the text, the page of 12 packed rows of it, and records.json of the same rows."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "text.txt").write_text("\n\n".join(f"Document {number}.\n{HOSTILE}" for number in range(60)) + "\n")
    # A vocabulary of whole words with the hostile characters in it, as a SentencePiece or another's may have.
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    characters = sorted(set(HOSTILE.lower()) - {" "} | set("document0123456789."))
    words = ["script", "onmouseover", "alert", "onerror", "\u202eevil\u200b", "שלום"]
    (folder / "vocab").mkdir()
    (folder / "vocab/vocab.txt").write_text(
        "\n".join([*pieces, *characters, *(f"##{character}" for character in characters), *words]) + "\n"
    )
    flags = [f"--input={folder / 'text.txt'}", f"--vocab={folder / 'vocab'}", "--length=200", "--examples=12"]
    flags += ["--gin.TextData.rows=@Packed()", f"--cache_dir={folder / 'cache'}"]
    assert cli.main(["preview", *flags, f"--html={folder / 'page.html'}", "--stat_rows=20"]) == 0
    with pytest.MonkeyPatch.context() as patch:
        lines = []
        patch.setattr("builtins.print", lambda *values, **_: lines.extend(values))
        assert cli.main(["preview", *flags, "--json"]) == 0
    (folder / "records.json").write_text(lines[0])
    return folder


def test_everything_is_in_the_page_as_text(folder):
    page = Page((folder / "page.html").read_text())
    records = json.loads((folder / "records.json").read_text())
    assert {tag for tag, _ in page.elements} <= ALLOWED
    for _, attributes in page.elements:
        assert not any(name.startswith("on") or name in ("src", "style") for name in attributes)
        assert attributes.get("href", "data:,") == "data:,"
    shown = iter(page.bdi)
    for record in records:
        predicted = {found["position"]: found for found in record["predictions"]}
        for example in record["examples"]:
            for place in range(example["begin"], example["end"]):
                expected = [record["pieces"][place]]
                if place in predicted:
                    expected.insert(0, record["original"][place])
                for piece in expected:
                    visible = piece.replace("\u202e", "<U+202E>").replace("\u200b", "<U+200B>")
                    assert visible in shown, piece  # each after the one before
        for found in record["predictions"]:
            assert f"{found['input']}{found['kind']}×1" in page.text.replace("<U+202E>", "\u202e").replace("<U+200B>", "\u200b")
    assert len(re.findall(r"Row\d+\d+example", page.text)) == 12
    assert page.text.count("positionsofpadding,weight0") == sum(record["padding"] > 0 for record in records)
    assert sum(tag == "article" for tag, _ in page.elements) == sum(len(record["examples"]) for record in records)
    assert any(len(record["examples"]) > 1 for record in records)
    assert "Statisticsof20rows" in page.text
    raw = (folder / "page.html").read_text()
    assert not re.search("[\u200b-\u200f\u202a-\u202e\u2066-\u2069]", raw) and "http:" not in raw and "https:" not in raw


def test_an_existing_page_is_kept_without_overwrite(folder, capsys):
    before = listing(folder)
    flags = ["preview", f"--cache_dir={folder / 'cache'}", "--length=30", f"--html={folder / 'page.html'}"]
    assert cli.main(flags) == 2
    assert capsys.readouterr().err == (
        f"bertfam: error: --html={folder / 'page.html'} exists already: name another file, or give --overwrite to replace it\n"
    )
    assert listing(folder) == before
    old = (folder / "page.html").read_text()
    try:
        assert cli.main([*flags, "--overwrite"]) == 0
        assert capsys.readouterr().out == f"page: {folder / 'page.html'}\n"
        assert (folder / "page.html").read_text() != old
    finally:
        (folder / "page.html").write_text(old)


@needs_chromium
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_it_without_an_error(folder, width):
    with opened(folder / "page.html", width) as shown:
        page = Page(shown.content())
    assert {tag for tag, _ in page.elements} <= ALLOWED and "script" not in {tag for tag, _ in page.elements}
    assert page.text.count("<script>alert(1)</script>") >= 12  # the decoded texts, as text
    assert page.bdi == Page((folder / "page.html").read_text()).bdi


def test_invisible_characters_are_spelt_out():
    piece = "<script>\u202e\u200b\x1b\ufe0f"
    record = {
        "corpus": "<b>",
        "pieces": ["[CLS]", piece, "x"],
        "padding": 2,
        "predictions": [{"position": 2, "original": piece, "input": "x", "kind": "random", "weight": 0.5}],
        "examples": [{"segment": 1, "begin": 0, "end": 3, "next_sentence": "random", "text": piece}],
        "features": {"encoder_token_type_ids": [0, 0, 1, 0, 0]},
    }
    statistics = Statistics(5, rows=1, tokens=3, lengths=Counter({3: 1}), corpora=Counter({"<b>": 1, "two": 0}))
    raw = page(statistics, [record], piece, {"rows": piece})
    shown = "<script><U+202E><U+200B><U+001B><U+FE0F>"
    assert not set(piece) & set(raw) - set("<script>")
    found = Page(raw)
    assert found.bdi.count(shown) == 5 and found.elements.count(("title", {})) == 1  # heading, about, text, token and target
    assert {tag for tag, _ in found.elements} <= ALLOWED
    assert (
        f"{shown}xrandom×0.5" in found.text and "3tokens,Bisrandom" in found.text and "2positionsofpadding,weight0" in found.text
    )
    assert "100.0%<b>oftherowsarefromthiscorpus" in found.text
