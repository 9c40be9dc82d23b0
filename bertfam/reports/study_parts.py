"""Parts of a report about the studies whose runs it shows: their verdicts and scores."""

from pathlib import Path

from bertfam.errors import UserError
from bertfam.pages.document import html_table, html_text
from bertfam.storage.untrusted import read_json
from bertfam.studies.tables import sections

_SHOWN = ("Verdicts", "Scores")


def study_html(folder: Path) -> str:
    """Return the verdicts and the scores of the report in the folder of a study; of a damaged report a line that says so."""
    path = folder / "report.json"
    try:
        report = read_json(path)
        tables = {title: table for title, table in sections(report).items() if title in _SHOWN}
        words = html_text(report["question"])
    except UserError as error:
        return f"<p class='note'>Not shown: {html_text(error)}</p>"
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return f"<p class='note'>Not shown: {html_text(path)} is damaged, or of another version.</p>"
    parts = "".join(f"<h4>{title}</h4>{html_table(table)}" for title, table in tables.items())
    whole = f"<p class='note'>All tests and costs are in {html_text(folder / 'report.html')}.</p>"
    return f"<h3>{html_text(folder.name)}</h3><p>{words}</p>{parts}{whole}"
