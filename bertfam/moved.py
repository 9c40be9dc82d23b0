"""Old import paths of modules that README and docs showed, which keep working with one warning each."""

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

MODULES = {
    "bertfam.corruption.choosing": "bertfam.corruption.masked_lm.selection",
    "bertfam.corruption.choosing_spans": "bertfam.corruption.masked_lm.span_selection",
    "bertfam.corruption.denoising": "bertfam.corruption.bart.denoising",
    "bertfam.corruption.masking": "bertfam.corruption.masked_lm.masking",
    "bertfam.corruption.span_corruption": "bertfam.corruption.t5.span_corruption",
    "bertfam.data.mixture": "bertfam.data.rows.mixture",
    "bertfam.data.packing": "bertfam.data.rows.packing",
    "bertfam.data.pair_files": "bertfam.data.corpora.pair_files",
    "bertfam.data.pairs": "bertfam.data.rows.sentence_pairs",
    "bertfam.data.sources": "bertfam.data.corpora.text_files",
    "bertfam.data.tasks": "bertfam.data.seqio_tasks.tasks",
    "bertfam.data.text_rows": "bertfam.data.rows.running_text",
    "bertfam.data.text_to_text": "bertfam.data.rows.text_pairs",
    "bertfam.data.two_segments": "bertfam.data.rows.two_segments",
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Resolves an old path to the module that took its place."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name in MODULES else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        new = MODULES[spec.name]
        warnings.warn(f"{spec.name} is now {new}; change the import", FutureWarning, stacklevel=2)
        return importlib.import_module(new)

    def exec_module(self, module: ModuleType) -> None:
        """The module is loaded already: `create_module` imported it under its new path."""


def install() -> None:
    """Make the old paths importable."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
