"""Masked language model and a classification of sentence pairs by their [CLS]."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.features import FeatureSpec, RowShape, Sentences
from bertfam.layers.heads.pretraining import ClassificationHead
from bertfam.layers.initializers import named_key
from bertfam.layers.lookup import gather_positions
from bertfam.models.encoder import init_on_hidden, pooler, sentence_head
from bertfam.objectives.mlm import Mlm
from bertfam.objectives.objective import Batch, LossOut, Sum, Tree, check_coefficients, masked_cross_entropy


@dataclass(frozen=True)
class MlmOfPairs(Mlm):
    """L = mlm * mean over masked positions of CE(vocabulary) + TERM * mean over pairs of CE(classes).

    A subclass names the question about the pairs in `sentences`, and has that term's coefficient under the term's name. `init`
    makes params {"encoder", "pooler", "mlm_head", "TERM_head"}.

    Attributes:
      model: the encoder.
      execution: how it is computed; never part of a checkpoint.
      mlm: the coefficient of the masked language model's loss.
    """

    sentences: ClassVar[Sentences]

    mlm: float = 1.0

    def __post_init__(self) -> None:
        check_coefficients(**self.coefficients)

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return super().features(shape) | self.sentences.features(shape)

    @override
    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        params, carry, aux = super().init(key, shape)
        params["pooler"] = init_on_hidden(self.model, pooler(self.model), named_key(key, "pooler"))
        name = self.sentences.head
        params[name] = init_on_hidden(self.model, self._head, named_key(key, name))
        return params, carry, aux

    @override
    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return super().denominators(batch) | {self.sentences.term: jnp.sum(batch[self.sentences.weights])}

    @override
    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        hidden = self.encoded(params, batch, key=key, train=train)
        terms, metrics = self.token_terms(params, hidden, batch)
        # [batch, length, embed] -> [batch, examples, embed] -> [batch, examples, classes]
        first = gather_positions(hidden, batch["sequence_start_positions"])
        pooled = pooler(self.model, self.execution).apply({"params": params["pooler"]}, first)
        asked, head = self.sentences, self._head
        logits: Any = head.apply({"params": params[asked.head]}, pooled)
        loss, accuracy = masked_cross_entropy(logits, batch[asked.labels], batch[asked.weights])
        metrics |= {f"{asked.term}_loss": Sum(loss, accuracy.weight), f"{asked.term}_accuracy": accuracy}
        return LossOut(terms | {asked.term: loss}, carry, metrics)

    def token_terms(self, params: Tree, hidden: jax.Array, batch: Batch) -> tuple[dict[str, jax.Array], dict[str, Sum]]:
        """Compute the terms of the tokens of hidden [batch, length, embed], float32[] each, and their metrics."""
        mlm, metrics = self.masked_loss(params, hidden, batch)
        return {"mlm": mlm}, metrics

    @property
    def _head(self) -> ClassificationHead:
        return sentence_head(self.model, len(self.sentences.classes), self.execution)
