"""bertfam: the BERT family tree, pretrained in JAX and Flax.

`bertfam.load(path)` opens a MODEL_DIR or a Hugging Face folder; everything else is reached by its module.
"""

from typing import Any

__version__ = "0.1.0"
__all__ = ["Generator", "Model", "load"]


def __getattr__(name: str) -> Any:
    # The command line must answer --help without importing JAX.
    if name in __all__:
        from bertfam import api

        return getattr(api, name)
    raise AttributeError(f"module 'bertfam' has no attribute {name!r}")
