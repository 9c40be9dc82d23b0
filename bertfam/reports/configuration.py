"""Configuration of runs, with the origin of every value and the differences between runs.

The text of config.gin is parsed, not built: it may name modules, which reading a folder does not import.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bertfam.config.parse import Binding, parse_text, render
from bertfam.config.paths import shown
from bertfam.reports.run_folder import RunFolder
from bertfam.storage.untrusted import read_text

_ABSENT = "—"
_UNKNOWN = "not recorded"
_DEFAULT = "default"
# Values that the places of files and machines decide.
_NOT_COMPARED = ("TextData.vocabulary", "TextData.cache_dir")


class Value(NamedTuple):
    """Value of a configuration, as gin text, and the file and line, or the flag, that bound it."""

    text: str
    origin: str

    @property
    def is_default(self) -> bool:
        """True if nothing bound it."""
        return self.origin == _DEFAULT


Configuration = Mapping[str, Value]


def read_configuration(run: RunFolder) -> dict[str, Value]:
    """Read the values of MODEL_DIR/config.gin, by name.

    Raises:
      UserError: it is missing or damaged.
    """
    path = run.path / "config.gin"
    bindings = [one for one in parse_text(read_text(path), shown(path)) if isinstance(one, Binding)]
    origins = {name: origin for start in run.recorded for name, origin in start.origins.items()}
    unnamed = _DEFAULT if run.recorded else _UNKNOWN
    return {name: Value(render(one.value), origins.get(name, unnamed)) for one in bindings if (name := _name(one))}


def _name(binding: Binding) -> str:
    if binding.is_macro:
        return binding.parameter
    return f"{binding.scope}/{binding.selector}.{binding.parameter}".removeprefix("/")


def differences(labels: Sequence[str], configurations: Sequence[Configuration]) -> list[list[str]]:
    """Return the table of the values that differ between runs; only its header if none do."""
    names = dict.fromkeys(name for own in configurations for name in own if name not in _NOT_COMPARED)
    rows = []
    for name in names:
        texts = [own[name].text if name in own else _ABSENT for own in configurations]
        if len(set(texts)) > 1:
            rows.append([name, *texts])
    return [["value", *labels], *rows]


def tables(configuration: Configuration) -> tuple[list[list[str]], list[list[str]]]:
    """Return the table of the values that something bound, with their origins, and the table of defaults."""
    header = ["value", "", "bound by"]
    bound = [[name, own.text, own.origin] for name, own in configuration.items() if not own.is_default]
    defaults = [[name, own.text] for name, own in configuration.items() if own.is_default]
    return [header, *bound], [header[:2], *defaults]
