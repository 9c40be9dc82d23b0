"""Names of earlier versions: old module paths, and gin parameters that a class no longer has or did not have yet.

An old path keeps working with one warning, for imports and for dotted names of configurables in gin. A retired parameter is
accepted with its former default, which every config.gin of an earlier version states.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

from typing_extensions import override

MODULES = {
    "bertfam.corruption.choosing": "bertfam.corruption.masked_lm.selection",
    "bertfam.corruption.choosing_spans": "bertfam.corruption.masked_lm.span_selection",
    "bertfam.corruption.denoising": "bertfam.corruption.bart.denoising",
    "bertfam.corruption.infilling": "bertfam.corruption.bart.infilling",
    "bertfam.corruption.masking": "bertfam.corruption.masked_lm.masking",
    "bertfam.corruption.noising": "bertfam.corruption.bart.token_noise",
    "bertfam.corruption.random_spans": "bertfam.corruption.t5.random_spans",
    "bertfam.corruption.random_tokens": "bertfam.corruption.t5.random_tokens",
    "bertfam.corruption.rewriting": "bertfam.corruption.t5.span_formats",
    "bertfam.corruption.shuffling_windows": "bertfam.corruption.masked_lm.shuffled_windows",
    "bertfam.corruption.span_corruption": "bertfam.corruption.t5.span_corruption",
    "bertfam.corruption.text_to_text": "bertfam.corruption.t5.text_to_text",
    "bertfam.corruption.units": "bertfam.corruption.masked_lm.units",
    "bertfam.data.marked_text": "bertfam.data.corpora.marked_text",
    "bertfam.data.mixture": "bertfam.data.rows.mixture",
    "bertfam.data.packing": "bertfam.data.rows.packing",
    "bertfam.data.pair_files": "bertfam.data.corpora.pair_files",
    "bertfam.data.pairs": "bertfam.data.rows.sentence_pairs",
    "bertfam.data.python_docs": "bertfam.data.corpora.python_docs.corpus",
    "bertfam.data.seqio_task": "bertfam.data.seqio_tasks.corpus",
    "bertfam.data.sources": "bertfam.data.corpora.text_files",
    "bertfam.data.tasks": "bertfam.data.seqio_tasks.tasks",
    "bertfam.data.text_rows": "bertfam.data.rows.running_text",
    "bertfam.data.text_to_text": "bertfam.data.rows.text_pairs",
    "bertfam.data.two_segments": "bertfam.data.rows.two_segments",
    "bertfam.partitioning": "bertfam.sharding",
    "bertfam.partitioning.mesh": "bertfam.sharding.mesh",
    "bertfam.partitioning.rules": "bertfam.sharding.rules",
}


class Retired(NamedTuple):
    """Gin parameter that a configurable no longer has.

    Attributes:
      default: its former default there, the only value that is accepted.
      owner: name of the configurable that has the parameter now.
    """

    default: Any
    owner: str


def _retired(owner: str, **defaults: Any) -> dict[str, Retired]:
    return {parameter: Retired(default, owner) for parameter, default in defaults.items()}


_ALBERT_ONLY = _retired("AlbertConfig", sharing="none")
_ROBERTA_ONLY = _retired("RobertaConfig", position_offset=0)
_GPT2_ONLY = _retired("Gpt2Config", scale_attention=True, scale_attention_by_layer=False)
_OPT_ONLY = _retired("OptConfig", position_offset=0, embedding_size=None)
_PALM_ONLY = _retired(
    "PalmConfig",
    num_key_value_heads=None,
    rotary_theta=None,
    gated=False,
    norm_bias=True,
    scale_logits=False,
    table_initializer_range=None,
)

# Selector of a configurable -> the retired parameters that it and its subclasses do not have.
PARAMETERS: dict[str, dict[str, Retired]] = {
    "bertfam.models.bert.BertConfig": {**_ALBERT_ONLY, **_ROBERTA_ONLY},
    "bertfam.models.gpt.GptConfig": {
        **_GPT2_ONLY,
        **_OPT_ONLY,
        **_PALM_ONLY,
        **_retired("OptConfig", block="post_norm", last_norm=False),
    },
    "bertfam.models.gpt2.Gpt2Config": {
        **_OPT_ONLY,
        **_PALM_ONLY,
        **_retired("OptConfig", block="pre_norm", last_norm=True),
    },
    "bertfam.models.mt5.MT5Config": _retired("T5Config", scale_logits=False),
    "bertfam.models.opt.OptConfig": {**_GPT2_ONLY, **_PALM_ONLY},
    "bertfam.models.palm.PalmConfig": {
        **_GPT2_ONLY,
        **_OPT_ONLY,
        **_retired("OptConfig", block="parallel", last_norm=True),
    },
}


# Selector of a configurable -> its parameters that an earlier config.gin of a run does not state, with the values that it means.
ADDED: dict[str, dict[str, Any]] = {
    "bertfam.data.text_data.TextData": {"rows_version": 1, "similar_lengths": False},
    "bertfam.layers.execution.Execution": {"dropout_bits": "threefry"},
    "bertfam.training.run.Run": {"seed_bits": 32},
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import finder that resolves an old path to the module that replaced it."""

    @override
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name in MODULES else None

    @override
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        new = MODULES[spec.name]
        warnings.warn(f"{spec.name} is now {new}; change the import", FutureWarning, stacklevel=2)
        module = importlib.import_module(new)
        spec.loader_state = module.__spec__
        return module

    @override
    def exec_module(self, module: ModuleType) -> None:
        # The module has been executed under its new path; importlib has meanwhile given it the spec of the old one.
        if module.__spec__ is not None and module.__spec__.loader is self:
            module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Make the old paths importable."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # First: the standard finder would load a copy of a module whose old package is already an alias of the new one.
        sys.meta_path.insert(0, _Finder())
