"""Frame of every HTML page: self-contained, with all text escaped, in light, dark and printed colours."""

import html
import json
from collections.abc import Sequence
from typing import Any

from bertfam.pages.style import STYLE
from bertfam.pages.visible import visible


def document(title: str, body: str, *, style: str = "", data: Any = None, script: str = "") -> str:
    """Return an HTML page that loads nothing.

    Args:
      title: its title, as text.
      body: the elements of its body, as HTML.
      style: CSS beside that of all pages.
      data: JSON value for the script, in the element `data`; None: no such element.
      script: JavaScript that runs once the page is there; "": none, and none is allowed.
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:" + "; script-src 'unsafe-inline'" * bool(script)
    content = "" if data is None else f"<script type='application/json' id='data'>{script_json(data)}</script>"
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        f"<meta http-equiv='Content-Security-Policy' content=\"{policy}\">"
        "<meta name='viewport' content='width=device-width, initial-scale=1'><link rel='icon' href='data:,'>"
        f"<title>{html_text(title)}</title><style>{STYLE}{style}</style></head>\n"
        f"<body>{body}{content}{f'<script>{script}</script>' if script else ''}</body></html>\n"
    )


def script_json(data: Any) -> str:
    """Return a value as JSON for a script element, which only "<" could end, or open a comment in."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def html_text(text: object) -> str:
    """Escape text from outside, and spell out its invisible characters."""
    return html.escape(visible(str(text)))


def isolated(text: object) -> str:
    """Return text from outside as an element that keeps its direction of writing to itself."""
    return f"<bdi>{html_text(text)}</bdi>"


def html_table(table: Sequence[Sequence[object]]) -> str:
    """Return a table, whose first row is its header; one that is wider than the page scrolls by itself."""
    head = "".join(f"<th>{html_text(cell)}</th>" for cell in table[0])
    body = "".join(f"<tr>{''.join(f'<td>{html_text(cell)}</td>' for cell in row)}</tr>" for row in table[1:])
    return f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
