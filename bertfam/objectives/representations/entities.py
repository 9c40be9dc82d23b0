"""Denoising entity auto-encoder, with BERT's two losses: ERNIE of Tsinghua (Zhang et al. 2019, section 3.4)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.corruption.entity_folder import EntityFolder, read_entities
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.features import SENTENCES, FeatureSpec, RowShape, Sentences, entity_features
from bertfam.layers.initializers import named_key
from bertfam.layers.lookup import gather_positions
from bertfam.models.encoder import init_on_hidden
from bertfam.models.entity_ernie import AlignedEntities, EntityErnieConfig
from bertfam.objectives.objective import Batch, LossOut, Sum, Tree, masked_cross_entropy
from bertfam.objectives.pairs import MlmOfPairs

ENTITIES = "entities"
_VECTORS, _CANDIDATES, _CANDIDATE_VECTORS = "entity_vectors", "entity_candidates", "entity_candidate_vectors"


@dataclass(frozen=True)
class MlmNspDea(MlmOfPairs):
    """L = BERT's loss + dea * mean over entities of CE(candidates); see `MlmNsp`.

    The candidates are the entities to predict anywhere in the batch, each once, as in the published code (equation 6 has those
    of the row). Those of a microbatch, or of a batch of another size, are others, and so is the loss. The vectors of entities
    come from a folder and are not trained; `init` makes aux {"entities"} of zeros, float32[entities + 1, size], and params
    {"encoder", "pooler", "mlm_head", "nsp_head", "entity_head"}. Where a model is used without entities, such as by `predictions`
    and in fine-tuning, it reads the text alone.

    Metrics of the entities are `dea_loss`, `dea_accuracy` and `dea_majority_accuracy`, that of the most frequent entity of the
    batch.

    Attributes:
      model: the encoder.
      execution: how it is computed; never part of a checkpoint.
      mlm: the coefficient of the masked language model's loss.
      nsp: the coefficient of the next-sentence loss.
      dea: the coefficient of the entity auto-encoder's loss.
      entities: folder of `bertfam entities`, the one of the noise.
    """

    terms: ClassVar[tuple[str, ...]] = ("mlm", "nsp", "dea")
    sentences: ClassVar[Sentences] = SENTENCES["next"]

    nsp: float = 1.0
    dea: float = 1.0
    entities: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.model, EntityErnieConfig):
            raise UserError(
                f"MlmNspDea trains an EntityErnieConfig, and {type(self.model).__name__} is none: use "
                "models/entity_ernie_base.gin"
            )

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return super().features(shape) | entity_features(shape)

    @override
    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        params, carry, aux = super().init(key, shape)
        params["entity_head"] = init_on_hidden(self.model, self._model.entity_head(), named_key(key, "entity_head"))
        entities = self._model.published_entities if self.entities is None else len(self._folder)
        return params, carry, aux | {ENTITIES: jnp.zeros((1 + entities, self._model.entity_size), jnp.float32)}

    @override
    def read_aux(self, vocabulary: Vocabulary) -> dict[str, Any]:
        folder = self._folder
        if folder.vocabulary_digest != vocabulary.fingerprint:
            raise UserError(
                f"{folder.path} has names in the pieces of another vocabulary than the run's: make it again with "
                "`bertfam entities` from this text's token cache"
            )
        return {ENTITIES: folder.vectors}

    @override
    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return super().denominators(batch) | {"dea": jnp.sum(batch["entity_loss_weights"])}

    @override
    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        table = aux[ENTITIES]
        targets = jnp.where(batch["entity_loss_weights"] > 0, batch["entity_targets"], 0)
        # [batch * slots], ascending; 0, which stands for none, fills the rest and may come first.
        candidates = jnp.unique(targets, size=targets.size, fill_value=0)
        vectors = {
            _VECTORS: table[batch["encoder_entity_ids"]],
            _CANDIDATES: candidates,
            _CANDIDATE_VECTORS: table[candidates],
        }
        return super().loss(params, carry, aux, dict(batch) | vectors, key=key, train=train)

    @override
    def token_terms(self, params: Tree, hidden: jax.Array, batch: Batch) -> tuple[dict[str, jax.Array], dict[str, Sum]]:
        terms, metrics = super().token_terms(params, hidden, batch)
        # [batch, length, embed] -> [batch, slots, embed] -> [batch, slots, size]
        named = gather_positions(hidden, batch["entity_positions"])
        projected: Any = self._model.entity_head(self.execution).apply({"params": params["entity_head"]}, named)
        candidates, weights = batch[_CANDIDATES], batch["entity_loss_weights"]
        vectors = batch[_CANDIDATE_VECTORS].astype(projected.dtype)
        logits = jnp.einsum("bse,ce->bsc", projected, vectors, preferred_element_type=jnp.float32)
        logits = jnp.where(candidates > 0, logits, -jnp.inf)
        # [batch, slots, candidates]
        matches = (batch["entity_targets"][..., None] == candidates) & (weights > 0)[..., None]
        loss, accuracy = masked_cross_entropy(logits, jnp.argmax(matches, axis=-1), weights)
        majority = Sum(jnp.max(jnp.sum(matches, axis=(0, 1))).astype(jnp.float32), accuracy.weight)
        metrics |= {"dea_loss": Sum(loss, accuracy.weight), "dea_accuracy": accuracy, "dea_majority_accuracy": majority}
        return terms | {"dea": loss}, metrics

    @override
    def flops(self, shape: RowShape) -> int:
        slots = entity_features(shape)["entity_targets"].shape[0]
        e = self._model.entity_size
        return super().flops(shape) + 3 * slots * 2 * e * (self.model.hidden_size + slots * shape.rows)

    @override
    def _inputs(self, batch: Batch) -> dict[str, Any]:
        inputs = super()._inputs(batch)
        if _VECTORS in batch:
            inputs["entities"] = AlignedEntities(batch[_VECTORS], batch["encoder_entity_ids"] > 0)
        return inputs

    @property
    def _model(self) -> EntityErnieConfig:
        assert isinstance(self.model, EntityErnieConfig)
        return self.model

    @property
    def _folder(self) -> EntityFolder:
        folder = read_entities(self.entities)
        if (size := folder.vectors.shape[1]) != self._model.entity_size:
            raise UserError(
                f"{folder.path} has vectors of {size} numbers and EntityErnieConfig.entity_size is {self._model.entity_size}: "
                "make them equal"
            )
        return folder
