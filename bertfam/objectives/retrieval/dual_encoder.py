"""Dual encoder for retrieval, trained with the other passages of the batch as negatives (Karpukhin et al. 2020, DPR)."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, text_features
from bertfam.kernels.chunked_cross_entropy import NO_TOKEN_LOGIT
from bertfam.layers.execution import Execution
from bertfam.layers.heads.projection import Projection
from bertfam.layers.initializers import named_key
from bertfam.layers.pooling import PoolingMode, normalized, pool
from bertfam.models.encoder import EncoderConfig, init_encoder
from bertfam.objectives.objective import (
    Batch,
    LossOut,
    Objective,
    Predictions,
    Sum,
    Tree,
    masked_cross_entropy,
)
from bertfam.plurals import plural
from bertfam.sharding.pieces import interleaved, joined

ENCODER, PROJECTION = "encoder", "projection"  # parameters of a tower
QUERY, PASSAGE = "query", "passage"  # two towers
_OF_TOKENS = ("encoder_input_tokens", "encoder_segment_ids", "encoder_token_type_ids")


@dataclass(frozen=True)
class DualEncoder(Objective):
    """L = mean over queries i of -log(exp(q_i . p_i / t) / sum over all passages j of the batch of exp(q_i . p_j / t)).

    This is equation 2 of Karpukhin et al. 2020 (t = 1). The sum is over the passages of the whole global batch on every mesh: the
    right ones of all queries, and their hard negatives if a row has several passages. It leaves out passages that answer the
    query too: those with the tokens of p_i, or of the right passage of a row with the same query. A vector is the pooled output
    of a tower, projected (Lee et al. 2019; Guu et al. 2020, section 3.2).

    The softmax has no exact microbatches. `Run.microbatches` therefore divides the towers alone: they embed the batch in so many
    pieces, and are computed again in the backward pass, piece by piece, which is the gradient caching of Gao et al. 2021 with the
    rematerialisation of JAX.

    `init` makes params {"encoder", "projection"} for one tower, and {"query", "query_projection", "passage",
    "passage_projection"} for two, which start alike from one model (--init_from).

    Attributes:
      model: the encoder of both towers.
      execution: how it is computed; never part of a checkpoint.
      query_length: positions of the query, the first of a row; passages have equal parts of the others.
      passages: passages of a row: the right one, and then hard negatives.
      shared: True for one tower that embeds queries and passages, False for two.
      projection: numbers of a vector; None: those of the encoder's output, without a projection.
      pooling: pooling of the encoder's output.
      normalize: True to scale vectors to length 1, so that a score is a cosine over t.
      temperature: t.
      pieces: pieces in which the towers embed a batch; `Run.microbatches` sets it.

    Raises:
      UserError: a number is out of its range.
    """

    terms: ClassVar[tuple[str, ...]] = ("retrieval",)

    model: EncoderConfig
    execution: Execution = Execution()
    query_length: int = 64
    passages: int = 1
    shared: bool = True
    projection: int | None = 128
    pooling: PoolingMode = "cls"  # type: ignore[misc]  # a constant of other objectives
    normalize: bool = False  # type: ignore[misc]
    temperature: float = 1.0
    pieces: int = 1

    def __post_init__(self) -> None:
        for name in ("query_length", "passages", "projection", "pieces"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise UserError(f"DualEncoder.{name} is {number}: it must be at least 1")
        if not 0 < self.temperature < math.inf:
            raise UserError(f"DualEncoder.temperature is {self.temperature}: it must be above 0")
        if self.pooling not in ("cls", "mean"):
            raise UserError(f'DualEncoder.pooling is {self.pooling!r}: it must be "cls" or "mean"')

    @property
    @override
    def networks(self) -> Mapping[str, Any]:
        return {ENCODER: self.model} if self.shared else {QUERY: self.model, PASSAGE: self.model}

    @property
    @override
    def initialized_networks(self) -> tuple[str, ...]:
        return tuple(self.networks)

    @override
    def split(self, params: Tree) -> dict[str, Tree]:
        if self.shared:
            return {ENCODER: params}
        names = {name: f"{name}_{PROJECTION}" for name in self.networks if name in params}
        return {
            name: {ENCODER: params[name]} | ({PROJECTION: params[own]} if own in params else {}) for name, own in names.items()
        }

    @override
    def joined(self, networks: Mapping[str, Tree]) -> Tree:
        if self.shared:
            return networks[ENCODER]
        params = {}
        for name, network in networks.items():
            params[name] = network[ENCODER]
            if PROJECTION in network:
                params[f"{name}_{PROJECTION}"] = network[PROJECTION]
        return params

    @override
    def in_pieces(self, count: int) -> Self:
        return dataclasses.replace(self, pieces=count)

    @override
    def check_rows(self, rows: int, name: str) -> None:
        if rows * self.passages == 1:
            raise UserError(
                "a batch of one query and one passage has no wrong passages, so that the loss is 0: raise Stage.batch_size"
            )

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        rest, longest = shape.length - self.query_length, self.model.max_length
        if rest < 1 or rest % self.passages:
            raise UserError(
                f"Stage.length {shape.length} leaves {max(rest, 0)} positions after those of DualEncoder.query_length "
                f"{self.query_length}, which do not divide into passages ({self.passages}): change one of them"
            )
        passage, limit = rest // self.passages, f"{type(self.model).__name__}.max_length {longest}"
        if longest is not None and self.query_length > longest:
            raise UserError(f"questions of {self.query_length} tokens (QUERY_LENGTH) are longer than {limit}: shorten them")
        if longest is not None and passage > longest:
            texts = f"a question and {plural(self.passages, 'passage')}"
            raise UserError(
                f"passages of {passage} tokens are longer than {limit}: lower Stage.length, {shape.length} for {texts}"
            )
        return text_features(shape, 1 + self.passages)

    @override
    def sequence_shape(self, shape: RowShape) -> RowShape:
        return shape._replace(length=max(self.query_length, (shape.length - self.query_length) // self.passages))

    @override
    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        hidden = jnp.zeros((1, self.model.hidden_size), jnp.float32)
        towers = {}
        for name in self.networks:
            towers[name] = {ENCODER: init_encoder(self.model, named_key(key, name), self.sequence_shape(shape).length)}
            if (projection := self._projection) is not None:
                own_key = named_key(named_key(key, name), PROJECTION)
                towers[name][PROJECTION] = projection.init(own_key, hidden)["params"]
        return self.joined(towers), {}, {}

    @override
    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return {"retrieval": jnp.sum(self._has_query(batch).astype(jnp.float32))}

    @override
    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        queries, passages, is_passage = self.vectors(params, batch, key=key, train=train)
        # Every device has the passages of all of them.
        passages = nn.with_logical_constraint(passages, (None, None))
        scores = jnp.matmul(queries, passages.T, precision="highest") / self.temperature
        targets = self.passages * jnp.arange(len(queries), dtype=jnp.int32)
        scores = jnp.where(is_passage & ~self._is_also_right(batch, targets), scores, NO_TOKEN_LOGIT)
        loss, accuracy = masked_cross_entropy(scores, targets, self._has_query(batch).astype(jnp.float32))
        metrics = {"retrieval_loss": Sum(loss, accuracy.weight), "retrieval_accuracy": accuracy}
        return LossOut({"retrieval": loss}, carry, metrics)

    def vectors(
        self, params: Tree, batch: Batch, *, key: jax.Array | None, train: bool
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Embed the texts of a batch.

        Returns:
          queries float32[batch, size]; passages float32[batch * passages, size], those of a row one after another; and
          bool[batch * passages], False for those of padding rows.
        """

        def embed(piece: tuple[jax.Array, Batch]) -> tuple[jax.Array, jax.Array]:
            number, rows = piece
            keys = (None, None) if key is None else jax.random.split(key if self.pieces == 1 else jax.random.fold_in(key, number))
            query, passages = self._texts(rows)
            towers = self.split(params)
            own = self.embedded(towers[ENCODER if self.shared else QUERY], query, key=keys[0], train=train)
            others = self.embedded(towers[ENCODER if self.shared else PASSAGE], passages, key=keys[1], train=train)
            return own, others.reshape(own.shape[0], self.passages, -1)

        rows = {name: batch[name] for name in (*_OF_TOKENS, "sequence_start_positions")}
        if self.pieces == 1:
            queries, passages = embed((jnp.zeros((), jnp.int32), rows))
        else:
            pieces = jnp.arange(self.pieces), interleaved(rows, self.pieces)
            queries, passages = map(joined, jax.lax.map(jax.checkpoint(embed), pieces))
        is_passage = jnp.any(self._texts(batch)[1]["encoder_segment_ids"] > 0, axis=1)
        return queries, passages.reshape(-1, passages.shape[-1]), is_passage

    def _is_also_right(self, batch: Batch, targets: jax.Array) -> jax.Array:
        """Return True for passages that answer a query and are not its target int32[batch]: bool[batch, batch * passages]."""
        query, passages = map(_fingerprints, self._texts(batch))
        right = passages.reshape(len(query), self.passages, -1)[:, 0]
        # Every device compares its queries with the texts of all of them.
        queries, passages = (nn.with_logical_constraint(texts, (None, None)) for texts in (query, passages))
        same_query = jnp.all(query[:, None] == queries, axis=-1)
        same_passage = jnp.all(right[:, None] == passages, axis=-1)
        numbers = jnp.arange(len(passages), dtype=jnp.int32)
        answers_query = jnp.repeat(same_query, self.passages, axis=1) & (numbers % self.passages == 0)
        return (same_passage | answers_query) & (numbers != targets[:, None])

    def _texts(self, batch: Batch) -> tuple[Batch, Batch]:
        """Return the features of the queries [batch, query_length] and of the passages [batch * passages, passage length]."""
        first = self.query_length
        query = {name: batch[name][:, :first] for name in _OF_TOKENS}
        count = len(batch["encoder_input_tokens"]) * self.passages
        passages = {name: batch[name][:, first:].reshape(count, -1) for name in _OF_TOKENS}
        starts = batch["sequence_start_positions"]
        return query | {"starts": starts[:, :1]}, passages | {"starts": starts[:, 1:].reshape(count, 1)}

    def embedded(self, tower: Tree, texts: Batch, *, key: jax.Array | None, train: bool) -> jax.Array:
        """Embed texts by a tower {"encoder", "projection"}: float32[texts, size]."""
        encoder: Any = self.model.encoder(self.execution)
        hidden, _ = encoder.apply(
            {"params": tower[ENCODER]},
            texts["encoder_input_tokens"],
            segment_ids=texts["encoder_segment_ids"],
            token_type_ids=texts["encoder_token_type_ids"],
            train=train,
            rngs=self.execution.dropout_rngs(key),
        )
        vectors = pool(hidden, texts["encoder_segment_ids"], texts["starts"], self.pooling)
        projection: Any = self._projection
        vectors = vectors if projection is None else projection.apply({"params": tower[PROJECTION]}, vectors)
        return normalized(vectors) if self.normalize else vectors

    def _has_query(self, batch: Batch) -> jax.Array:
        """Return False for padding rows: bool[batch]."""
        return jnp.any(batch["encoder_segment_ids"][:, : self.query_length] > 0, axis=1)

    @property
    def _projection(self) -> Projection | None:
        return None if self.projection is None else Projection(self.projection, self.model.initializer_range)

    @override
    def predictions(self, params: Tree, batch: Batch) -> Predictions:
        raise UserError("DualEncoder embeds texts, and samples are of tokens: set Run.sample_every = 0")

    @override
    def flops(self, shape: RowShape) -> int:
        passage = (shape.length - self.query_length) // self.passages
        return int(self.model.flops(self.query_length, 0) + self.passages * self.model.flops(passage, 0))


def _fingerprints(texts: Batch) -> jax.Array:
    """Hash the tokens of each text, padding left out: uint32[texts, 2].

    Other texts have the same hash by chance less than once in 2^30 times, which would leave out one negative. The tokens
    themselves would have to be compared in an array [texts, texts, length], which XLA keeps in memory on CPUs.
    """
    tokens = jnp.where(texts["encoder_segment_ids"] > 0, 1 + texts["encoder_input_tokens"], 0).astype(jnp.uint32)
    factors = np.random.default_rng(0).integers(0, 2**32, (tokens.shape[1], 2), np.uint32) | np.uint32(1)
    return jnp.sum(tokens[:, :, None] * factors, axis=1, dtype=jnp.uint32)
