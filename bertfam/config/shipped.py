"""The gin files that are shipped with bertfam."""

import functools
import re

from bertfam.config import lint
from bertfam.config.parse import Binding, parse_file
from bertfam.config.paths import packaged_folder, shown


def shipped_files() -> list[str]:
    """Return the names of the files as `--gin_file` and `include` take them, sorted."""
    folder = packaged_folder()
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.gin"))


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, or what stands before its colon; "et al." ends none."""
    return re.split(r"(?<!\bet al)[.:](?:\s|$)", text, maxsplit=1)[0]


def summary(name: str) -> str:
    """Return the first sentence of the comment that a file begins with."""
    lines = []
    for line in (packaged_folder() / name).read_text(encoding="utf-8").splitlines():
        if not line.startswith("# "):
            break
        lines.append(line.removeprefix("# "))
    return first_sentence(" ".join(lines))


@functools.cache
def shipped_bindings() -> list[tuple[str, Binding]]:
    """Return (name of the file, binding) for every binding of a parameter in a shipped file; includes are not followed."""
    found, folder = [], packaged_folder()
    for name in shipped_files():
        own = shown(folder / name)
        statements = [s for s in parse_file(str(folder / name), name) if isinstance(s, Binding) and s.origin.source == own]
        found += [(name, lint.complete(statement)) for statement in statements if not statement.is_macro]
    return found
