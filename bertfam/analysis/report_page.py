"""HTML pages of reports: tables with notes, and drawings."""

from collections.abc import Callable, Mapping, Sequence

from bertfam.pages.document import document, html_table, html_text
from bertfam.pages.line_chart import STYLE

Tables = Mapping[str, Sequence[Sequence[str]]]  # tables by their titles; the first row of each is its header


def report_page(heading: str, tables: Tables, notes: Mapping[str, str], drawings: Callable[[str], Sequence[str]]) -> str:
    """Return a page of tables: self-contained, without scripts, with all text escaped.

    Args:
      heading: heading of the page.
      tables: the tables.
      notes: sentences about the tables, by the beginning of their titles.
      drawings: returns the drawings above a table, as HTML, for its title; `beside` or `with_legends` arrange them.
    """
    body = [f"<header><h1>{html_text(heading)}</h1></header><main>"]
    for title, table in tables.items():
        body.append(f"<h2>{html_text(title)}</h2><p class='note'>{html_text(note_of(title, notes))}</p>")
        body += drawings(title)
        body.append(html_table(table))
    return document(heading, "".join([*body, "</main>"]), style=STYLE)


def note_of(title: str, notes: Mapping[str, str]) -> str:
    """Return the note of a table: the one whose title begins that of the table, "" if there is none."""
    return next((note for begin, note in notes.items() if title.startswith(begin)), "")


def beside(drawings: Sequence[str]) -> str:
    """Return small drawings side by side, as HTML."""
    return f"<div style='display:flex;flex-wrap:wrap;gap:1rem'>{''.join(drawings)}</div>"
