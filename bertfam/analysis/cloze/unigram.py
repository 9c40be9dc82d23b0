"""Unigram baseline: token frequencies in place of a model's predictions."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from bertfam import session
from bertfam.data import vocabularies
from bertfam.data.token_cache.cache import TokenCache
from bertfam.decoding.hidden_tokens import HiddenTokens, TokenPredictor
from bertfam.errors import UserError
from bertfam.evaluation.baselines import unigram_counts
from bertfam.interop.folders import is_huggingface
from bertfam.storage.files import is_used
from bertfam.storage.paths import to_path
from bertfam.training.model_dir import read_run


class UnigramPredictor(TokenPredictor):
    """Predictor that gives each token its frequency in a text, with one added to each count, whatever is around it."""

    def __init__(self, like: TokenPredictor, counts: np.ndarray) -> None:
        """Predict the rows of another predictor by counts int64[vocabulary]."""
        self.vocabulary, self.before, self.behind, self.max_length = like.vocabulary, like.before, like.behind, like.max_length
        self.sees_behind, self.description = like.sees_behind, "by its frequency"
        self._logits = jnp.asarray(np.log((counts + 1) / (counts.sum() + len(counts))), jnp.float32)

    @override
    def logits(self, rows: Sequence[HiddenTokens], places: np.ndarray, length: int) -> jax.Array:
        return jnp.broadcast_to(self._logits, (*places.shape, len(self._logits)))


def unigram_predictor(like: TokenPredictor, model_dir: str, cache_dir: str | None) -> UnigramPredictor | None:
    """Create the predictor by the training text of a token cache.

    Args:
      like: predictor of the model.
      model_dir: folder of the model.
      cache_dir: token cache; None: that of the MODEL_DIR.

    Returns:
      the predictor; None if there is no cache.

    Raises:
      UserError: `cache_dir` is no token cache, or has another vocabulary.
    """
    if cache_dir is None:
        if is_huggingface(model_dir):
            return None
        run = read_run(model_dir)
        if not is_used(run.data.cache_directory(to_path(model_dir))):
            return None
        cache = session.open_saved_cache(run, to_path(model_dir))
    else:
        cache = TokenCache(cache_dir)
    if vocabularies.load(cache.vocabulary_directory).fingerprint != like.vocabulary.fingerprint:
        raise UserError(f"{cache.directory} was built with another vocabulary than {model_dir}; build one with its vocab/")
    size = like.vocabulary.size
    return UnigramPredictor(like, unigram_counts((cache.stored_documents("train", name, size) for name in cache.corpora), size))
