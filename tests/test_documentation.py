"""Links between the pages of the documentation, and their place in its table of contents."""

import re
from functools import cache
from pathlib import Path

import pytest

from bertfam.config.registry import CONFIGURABLES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# The pages of reference/gin are written by Sphinx.
WRITTEN = DOCS / "reference" / "gin"
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md", *DOCS.rglob("*.md"))
    if not path.is_relative_to(WRITTEN) and not path.is_relative_to(DOCS / "_build")
)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    slugs: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        slugs.append(f"{slug}-{slugs.count(slug)}" if slug in slugs else slug)
    return set(slugs)


def broken_links(page: Path) -> list[str]:
    """Return the relative links of a page that lead to no file, or to no heading of a page."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        name, _, anchor = target.partition("#")
        if re.match(r"\w+:", target):
            continue
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or anchor and anchor not in anchors(path):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page):
    assert not broken_links(page)


def test_every_page_is_in_the_table_of_contents():
    listed = set()
    for index in DOCS.rglob("index.md"):
        for block in re.findall(r"^```\{toctree\}$(.*?)^```$", index.read_text(), re.MULTILINE | re.DOTALL):
            lines = [line for line in block.split("\n") if line and not line.startswith(":")]
            listed |= {index.parent / f"{(re.findall('<(.+)>', line) or [line])[0]}.md" for line in lines}
    written = {path for path in listed if path.is_relative_to(WRITTEN)}
    assert listed - written == {page for page in PAGES if page.is_relative_to(DOCS)} - {DOCS / "index.md"}


def test_every_configurable_has_a_page():
    pages = re.findall(r"^PAGES = \((.*?)^\)$", (DOCS / "conf.py").read_text(), re.MULTILINE | re.DOTALL)
    assert {path.split(".")[1] for path in CONFIGURABLES} <= set(re.findall(r'"(\w+)"', pages[0]))


def test_every_family_has_a_section():
    table = (ROOT / "README.md").read_text().partition("<!-- families -->")[2].partition("<!-- end of families -->")[0]
    families = re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)
    assert families == re.findall(r"^## (.+)$", (DOCS / "each_family.md").read_text(), re.MULTILINE)


def test_broken_links_are_found(tmp_path):
    (tmp_path / "a.md").write_text("# A's page\n\n[a](#as-page) [b](b.md#two) [c](b.md#three) [d](c.md) [e](https://a.b/c.md)\n")
    (tmp_path / "b.md").write_text("## Two\n\n```\n# Three\n```\n")
    assert broken_links(tmp_path / "a.md") == ["b.md#three", "c.md"]
