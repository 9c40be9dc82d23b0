"""bertfam: the BERT family tree, pretrained in JAX and Flax.

`bertfam.load(path)` opens a MODEL_DIR or a Hugging Face folder; everything else is reached by its module.
"""

from typing import Any

from bertfam import moved
from bertfam.version import __version__

_API = ("Generator", "LanguageModel", "Model", "load")
_COMMANDS = ("cache", "distill", "evaluate", "export", "fill", "generate", "plan", "pretrain", "preview", "vocab")
__all__ = [*_API, "__version__"]

moved.install()


def __getattr__(name: str) -> Any:
    # The command line must answer --help without importing JAX.
    if name in _API:
        from bertfam import api

        return getattr(api, name)
    hint = (
        f"; bertfam.load(DIR) opens a model, and bertfam.cli.main([{name!r}, ...]) runs the command" if name in _COMMANDS else ""
    )
    raise AttributeError(f"module 'bertfam' has no attribute {name!r}{hint}")
