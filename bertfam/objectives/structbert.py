"""StructBERT's objective: masked tokens, shuffled tokens and the order of sentences (Wang et al. 2020, section 2)."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.features import SENTENCES, FeatureSpec, RowShape, Sentences, shuffled_features
from bertfam.objectives.objective import Batch, Sum, Tree, cross_entropies, cross_entropy_of
from bertfam.objectives.pairs import MlmOfPairs


@dataclass(frozen=True)
class MlmStructure(MlmOfPairs):
    """L = (mlm * sum_masked CE + shuffled * sum_shuffled CE) / (masked + shuffled) + structure * mean over pairs of CE(classes).

    The cross-entropies of masked and of shuffled tokens are over the vocabulary, and come from one head. The classes of a pair
    are: is random, is next, is previous. With equal coefficients the first part is the mean over all tokens that are predicted,
    masked and shuffled alike.

    Attributes:
      model: the encoder.
      execution: how it is computed; never part of a checkpoint.
      mlm: the coefficient of the masked tokens' loss.
      shuffled: the coefficient of the shuffled tokens' loss.
      structure: the coefficient of the sentences' loss.
    """

    terms: ClassVar[tuple[str, ...]] = ("mlm", "shuffled", "structure")
    sentences: ClassVar[Sentences] = SENTENCES["structure"]

    shuffled: float = 1.0
    structure: float = 1.0

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return super().features(shape) | shuffled_features(shape)

    @override
    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return super().denominators(batch) | {"shuffled": jnp.sum(batch["masked_loss_weights"])}

    @override
    def token_terms(self, params: Tree, hidden: jax.Array, batch: Batch) -> tuple[dict[str, jax.Array], dict[str, Sum]]:
        weights, shuffled = batch["masked_loss_weights"], batch["shuffled_loss_weights"]
        # [batch, predictions] each
        of_each = cross_entropies(self.masked_logits(params, hidden, batch), batch["masked_target_tokens"], weights)
        terms: dict[str, jax.Array] = {}
        metrics: dict[str, Sum] = {}
        for name, of_term in (("mlm", weights - shuffled), ("shuffled", shuffled)):
            terms[name], accuracy = cross_entropy_of(of_term, *of_each)
            metrics |= {f"{name}_loss": Sum(terms[name], accuracy.weight), f"{name}_accuracy": accuracy}
        return terms, metrics
