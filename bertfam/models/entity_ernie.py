"""ERNIE of Tsinghua (Zhang et al. 2019): a BERT whose upper layers fuse tokens with vectors of the entities that they name."""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.layers.activations import ACTIVATIONS, Activation
from bertfam.layers.attention.dot_product import Row, SelfAttention
from bertfam.layers.blocks import Maker, PostNormBlock, intermediates
from bertfam.layers.dense import Dense
from bertfam.layers.dropout import Dropout
from bertfam.layers.execution import Execution
from bertfam.layers.feed_forward import FeedForward
from bertfam.layers.initializers import Initializer, truncated_normal
from bertfam.layers.norm import LayerNorm
from bertfam.layers.stack import AXIS, FIRST, Stack, joined
from bertfam.models.bert import BertConfig, Embeddings
from bertfam.models.encoder import check_collectable

_EXECUTION = Execution()
_MIXED = "mixed_layer"


@dataclass(frozen=True)
class EntityErnieConfig(BertConfig):
    """Configuration of an ERNIE with entities; the defaults are the published model's. See `BertConfig`.

    The lowest `text_layers` are BERT's. In each layer above them an entity's vector, which stands at the first token of its name,
    is fused with that token (equations 2 to 5). The first of these layers has no attention among the entities, as they come from
    outside; the others have.

    Attributes:
      entity_size: width of the vectors of entities.
      entity_heads: heads of the attention among entities.
      text_layers: number of the lowest layers, which see no entities.

    Raises:
      UserError: when values clash.
    """

    objective_file: ClassVar[str] = "objectives/entities.gin"
    published_entities: ClassVar[int] = 5_041_174  # for plans without a folder of entities

    entity_size: int = 100
    entity_heads: int = 4
    text_layers: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(entity_size=1, entity_heads=1, text_layers=0)
        if self.entity_size % self.entity_heads:
            raise self._error("entity_size", f"must be a multiple of entity_heads, {self.entity_heads}")
        if self.text_layers >= self.num_layers - 1:
            raise self._error("text_layers", f"must be at most {self.num_layers - 2}, two less than num_layers")
        if self.causal:
            raise self._error("causal", "does not go with the attention among entities; leave it out")

    @property
    def fused_layers(self) -> int:
        """Number of layers with entities."""
        return self.num_layers - self.text_layers

    @override
    def encoder(self, execution: Execution = _EXECUTION) -> "Encoder":  # type: ignore[override]
        return Encoder(self, execution)

    def entity_head(self, execution: Execution = _EXECUTION) -> "EntityHead":
        """Return the head of the entities to predict."""
        activation = self.head_activation or self.activation
        return EntityHead(self.entity_size, activation, self.layer_norm_epsilon, self.initializer_range, execution)

    @override
    def flops(self, length: int, predictions: int) -> int:
        e, f = self.entity_size, self.feed_forward_size
        fusion = self.fused_layers * length * 4 * e * f
        attention = (self.fused_layers - 1) * (length * 8 * e * e + 4 * e * length * length)
        return super().flops(length, predictions) + 3 * (fusion + attention)


class AlignedEntities(NamedTuple):
    """Entities of rows, each at the first token of its name.

    Attributes:
      vectors: [batch, length, entity_size], 0 where there is none.
      present: bool[batch, length].
    """

    vectors: jax.Array
    present: jax.Array


class Fusion(nn.Module):
    """Information fusion of a token and its entity (Zhang et al. 2019, equations 3 and 4).

    h = activation(W_t w + W_e e + b); w' = W_o h + b_w; e' = W_oe h + b_e. Where there is no entity, e is 0.

    Attributes:
      size: width of h.
      activation: a name of `ACTIVATIONS`.
      dtype: dtype of the computation; parameters are float32.
      kernel_init: initializer of all kernels.
    """

    size: int
    activation: Activation
    dtype: Any
    kernel_init: Initializer

    @nn.compact
    def __call__(self, hidden: jax.Array, entities: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Fuse hidden [batch, length, embed] with entities [batch, length, entity_size]; return both, of the same shapes."""
        dense = partial(Dense, dtype=self.dtype, kernel_init=self.kernel_init)
        inner = dense((self.size,), ("embed", "mlp"), name="intermediate")(hidden)
        inner = inner + dense((self.size,), (None, "mlp"), use_bias=False, name="entity_intermediate")(entities)
        inner = nn.with_logical_constraint(ACTIVATIONS[self.activation](inner), ("batch", "length", "mlp"))
        output = dense((hidden.shape[-1],), ("mlp", "embed"), name="output")(inner)
        return output, dense((entities.shape[-1],), ("mlp", None), name="entity_output")(inner)


class EntityBlock(nn.Module):
    """Layer with entities: post-norm attention of the tokens and, in most, of the entities, then their fusion.

    Attributes:
      attention: constructor of the self-attention of the tokens.
      entity_attention: constructor of that of the entities; None: they have none.
      fusion: constructor of the fusion.
      norm: constructor of the norms.
      dropout_rate: dropout rate of each sublayer's outputs.
    """

    attention: Maker
    fusion: Maker
    norm: Maker
    entity_attention: Maker | None = None
    dropout_rate: float = 0.0

    @nn.compact
    def __call__(
        self,
        carry: tuple[jax.Array, jax.Array],
        *,
        row: Row,
        entity_row: Row,
        packed: bool,
        train: bool,
        collect: frozenset[str] = frozenset(),
    ) -> tuple[tuple[jax.Array, jax.Array], dict[str, Any]]:
        """Apply one layer.

        Args:
          carry: hidden states [batch, length, embed] and entities [batch, length, entity_size].
          row: the rows that the attention of tokens sees.
          entity_row: those that the attention of entities sees; its segment ids are 0 at tokens without an entity.
          packed: False promises that a row holds one example (ids 0 and 1) with its padding at the end.
          train: True to apply dropout.
          collect: names of intermediates of the tokens (see `bertfam.layers.blocks`).

        Returns:
          the next carry, and the intermediates that `collect` names.
        """
        hidden, entities = carry

        def add(name: str, hidden: jax.Array, output: jax.Array) -> jax.Array:
            normed: jax.Array = self.norm(name=f"{name}_norm")(
                hidden, Dropout(self.dropout_rate, name=f"{name}_dropout")(output, train=train)
            )
            return normed

        options: dict[str, Any] = {"packed": packed, "train": train}
        attended: Any = self.attention(name="attention")(hidden, row, return_weights="attention_probs" in collect, **options)
        hidden = add("attention", hidden, attended.output)
        if self.entity_attention is not None:
            options["packed"] = True  # entities stand anywhere in a row
            of_entities: Any = self.entity_attention(name="entity_attention")(entities, entity_row, **options)
            entities = add("entity_attention", entities, of_entities.output)
        entities = entities * (entity_row.segment_ids > 0)[..., None].astype(entities.dtype)
        outputs = self.fusion(name="feed_forward")(hidden, entities)
        hidden = add("feed_forward", hidden, outputs[0])
        entities = add("entity_feed_forward", entities, outputs[1])
        hidden = nn.with_logical_constraint(hidden, ("batch", "length", None))
        return (hidden, entities), intermediates(hidden, {"": attended}, collect)


class Encoder(nn.Module):
    """Embeddings, the layers of the text alone, and the layers with entities."""

    config: EntityErnieConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(
        self,
        tokens: jax.Array,
        *,
        segment_ids: jax.Array,
        positions: jax.Array | None = None,
        token_type_ids: jax.Array,
        train: bool,
        collect: frozenset[str] = frozenset(),
        entities: AlignedEntities | None = None,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Run the encoder as `bertfam.models.bert.Encoder`, on a text with its entities; None: on the text alone."""
        check_collectable(collect)
        config, dtype = self.config, self.execution.compute_dtype
        hidden = Embeddings(config, self.execution, name="embeddings")(
            tokens, positions=positions, token_type_ids=token_type_ids, train=train
        )
        embedded = hidden
        parts = self._layers()
        rows: dict[str, Any] = {"row": Row(segment_ids)}
        static: dict[str, Any] = {"packed": positions is not None, "train": train, "collect": collect}
        collected = []
        if FIRST in parts:
            hidden, found = parts[FIRST](hidden, rows, **static)
            collected.append(found)
        if entities is None:
            nothing = jnp.zeros((*tokens.shape, config.entity_size), dtype)
            entities = AlignedEntities(nothing, jnp.zeros(tokens.shape, bool))
        # The first token of an example always takes part, as in the published code, so that no entity is without a key.
        first = segment_ids != jnp.pad(segment_ids[:, :-1], ((0, 0), (1, 0)))
        rows["entity_row"] = Row(jnp.where(entities.present | first, segment_ids, 0))
        carry, found = parts[_MIXED]((hidden, entities.vectors.astype(dtype)), **rows, **static)
        collected.append(jax.tree.map(lambda leaf: leaf[None], found))
        (hidden, _), found = parts[AXIS](carry, rows, **static)
        outputs = joined(*collected, found)
        if "hidden_states" in outputs:
            # [batch, length, embed], [layers, batch, length, embed] -> [layers + 1, batch, length, embed]
            outputs["hidden_states"] = jnp.concatenate([embedded[None], outputs["hidden_states"]])
        return hidden, outputs

    def _layers(self) -> dict[str, Any]:
        """Return the modules of the layers by name: those of the text, where there are any, the mixed one, and the others."""
        config, execution, dtype = self.config, self.execution, self.execution.compute_dtype
        normal = truncated_normal(config.initializer_range)
        (attention,) = config.attentions(execution)
        norm = partial(LayerNorm, config.layer_norm_epsilon, dtype)
        text = partial(
            PostNormBlock,
            attention=attention,
            feed_forward=partial(FeedForward, config.feed_forward_size, config.activation, dtype, normal),
            norm=norm,
            attention_dropout_rate=config.dropout_rate,
            feed_forward_dropout_rate=config.dropout_rate,
        )
        fusion = partial(Fusion, config.feed_forward_size, config.activation, dtype, normal)
        mixed = partial(EntityBlock, attention, fusion, norm, dropout_rate=config.dropout_rate)
        width = config.entity_size // config.entity_heads
        of_entities = partial(SelfAttention, config.entity_heads, width, config.attention_dropout_rate, execution, normal)
        fused = partial(mixed, entity_attention=of_entities)
        parts: dict[str, Any] = {}
        if config.text_layers:
            parts[FIRST] = Stack(text, config.text_layers, (), execution, name=FIRST)
        parts[_MIXED] = mixed(name=_MIXED)
        return parts | {AXIS: Stack(fused, config.fused_layers - 1, (), execution, name=AXIS)}


class EntityHead(nn.Module):
    """Head of the entity auto-encoder: LayerNorm(activation(W h + b)), whose product with an entity's vector is its logit.

    Attributes:
      size: width of the vectors of entities.
      activation: a name of `ACTIVATIONS`.
      layer_norm_epsilon: epsilon of the LayerNorm.
      initializer_range: standard deviation of the kernel's truncated normal initial values.
      execution: dtype of the computation.
    """

    size: int
    activation: Activation
    layer_norm_epsilon: float = 1e-12
    initializer_range: float = 0.02
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Project hidden states [..., embed] to dtype[..., size]."""
        dtype, kernel_init = self.execution.compute_dtype, truncated_normal(self.initializer_range)
        projected = Dense((self.size,), ("embed", None), dtype, kernel_init=kernel_init, name="dense")(hidden)
        normed: jax.Array = LayerNorm(self.layer_norm_epsilon, dtype, name="norm")(ACTIVATIONS[self.activation](projected))
        return normed
