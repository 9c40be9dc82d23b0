"""bertfam: the BERT family tree, pretrained in JAX and Flax.

`bertfam.load(path)` opens a MODEL_DIR or a Hugging Face folder; everything else is reached by its module.
"""

from typing import Any

from bertfam import moved
from bertfam.version import __version__

_API = ("Generator", "LanguageModel", "Model", "load")
__all__ = [*_API, "__version__"]

moved.install()


def __getattr__(name: str) -> Any:
    # The command line must answer --help without importing JAX.
    if name in _API:
        from bertfam import api

        return getattr(api, name)
    raise AttributeError(f"module 'bertfam' has no attribute {name!r}")
