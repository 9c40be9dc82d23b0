"""Edits of a saved configuration: the bindings that differ between two gin texts."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from bertfam.config.parse import Binding, parse_text, render


@dataclass(frozen=True)
class Edits:
    """Bindings that an edit of a file has changed.

    Attributes:
      changed: (old value or None, binding) of each value that is other or new, in the order of the file.
      removed: the bindings that are no longer there.
    """

    changed: list[tuple[str | None, Binding]]
    removed: list[Binding]

    def __bool__(self) -> bool:
        return bool(self.changed or self.removed)

    def describe(self, path: str) -> str:
        """Describe the first edit, with its line, and the flags that make the same changes."""
        if not self.changed:
            first = self.removed[0]
            return f"{path}: {_name(first)}, which was {render(first.value)} when it was saved, is missing; put it back"
        old, first = self.changed[0]
        before = "was not bound" if old is None else f"was {old}"
        flags = [shlex.quote(f"--gin.{_name(binding)}={render(binding.value)}") for _, binding in self.changed]
        if len(flags) > 3:
            flags = [f"a --gin_file of {path} with all {len(flags)} changes, once {path} is as it was"]
        return (
            f"{path}:{first.origin.line}: {_name(first)} {before} when it was saved and is {render(first.value)} now; undo the "
            f"edit, and make the change by {' '.join(flags)}"
        )


def find_edits(old: str, new: str, path: str) -> Edits:
    """Compare the bindings of two gin texts without includes; `path` is the file of the new one.

    Raises:
      UserError: if the new text is not gin.
    """
    before, after = ({b.key: b for b in parse_text(text, path) if isinstance(b, Binding)} for text in (old, new))
    changed = [
        (render(before[key].value) if key in before else None, binding)
        for key, binding in after.items()
        if key not in before or render(before[key].value) != render(binding.value)
    ]
    return Edits(changed, [binding for key, binding in before.items() if key not in after])


def _name(binding: Binding) -> str:
    """Return the name of a binding as its file writes it."""
    if binding.is_macro:
        return binding.parameter
    return f"{binding.scope}/{binding.selector}.{binding.parameter}".removeprefix("/")
