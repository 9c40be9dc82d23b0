"""StructBERT's objective: masked and shuffled tokens, and how sentences follow each other (Wang et al. 2020, section 2)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from bertfam.features import SENTENCES, FeatureSpec, RowShape, Sentences, shuffled_features
from bertfam.objectives.objective import Batch, Sum, Tree, cross_entropies, cross_entropy_of
from bertfam.objectives.pairs import MlmOfPairs


@dataclass(frozen=True)
class MlmStructure(MlmOfPairs):
    """L = (mlm * sum over masked of CE(vocabulary) + shuffled * sum over shuffled of CE(vocabulary)) / (masked + shuffled)
    + structure * mean over pairs of CE(is random, is next, is previous).

    With equal coefficients the first part is the mean over all tokens that are predicted, masked and shuffled alike, in the one
    head of both.

    Attributes:
      model: the encoder.
      execution: how it is computed; never part of a checkpoint.
      mlm: the coefficient of the masked tokens' loss.
      shuffled: the coefficient of the shuffled tokens' loss.
      structure: the coefficient of the sentences' loss.
    """

    sentences: ClassVar[Sentences] = SENTENCES["structure"]

    shuffled: float = 1.0
    structure: float = 1.0

    @property
    def coefficients(self) -> Mapping[str, float]:
        """The weight of each loss term."""
        return {"mlm": self.mlm, "shuffled": self.shuffled, "structure": self.structure}

    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        """The features that it reads of each row."""
        return super().features(shape) | shuffled_features(shape)

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of predicted tokens, twice, and the number of pairs in the global batch."""
        return super().denominators(batch) | {"shuffled": jnp.sum(batch["masked_loss_weights"])}

    def token_terms(self, params: Tree, hidden: jax.Array, batch: Batch) -> tuple[dict[str, jax.Array], dict[str, Sum]]:
        """See `MlmOfPairs.token_terms`."""
        weights, shuffled = batch["masked_loss_weights"], batch["shuffled_loss_weights"]
        # [batch, predictions] each
        of_each = cross_entropies(self.masked_logits(params, hidden, batch), batch["masked_target_tokens"], weights)
        terms: dict[str, jax.Array] = {}
        metrics: dict[str, Sum] = {}
        for name, of_term in (("mlm", weights - shuffled), ("shuffled", shuffled)):
            terms[name], accuracy = cross_entropy_of(of_term, *of_each)
            metrics |= {f"{name}_loss": Sum(terms[name], accuracy.weight), f"{name}_accuracy": accuracy}
        return terms, metrics
