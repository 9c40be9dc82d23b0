"""Networks under a head: an encoder, a causal LM or an encoder-decoder, which read the rows of labelled texts."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, encoder_features, shifted_features
from bertfam.layers.execution import Execution
from bertfam.layers.initializers import named_key
from bertfam.models.encoder import init_encoder
from bertfam.models.language_model import init_language_model, word_embeddings
from bertfam.models.network import Kind
from bertfam.objectives.frozen import Frozen
from bertfam.objectives.objective import Batch, Tree

Hidden = tuple[jax.Array, dict[str, Any]]
Rngs = Mapping[str, jax.Array] | None


class Body(ABC):
    """Base class of the networks under a head, one for each kind of network.

    Attributes:
      parts: names of its parameters.
    """

    parts: ClassVar[tuple[str, ...]]

    @abstractmethod
    def init(self, model: Any, key: jax.Array, length: int) -> dict[str, Tree]:
        """Initialize the parameters of all parts, boxed, for rows of `length` tokens."""

    @abstractmethod
    def hidden(self, network: Any, params: Tree, batch: Batch, *, train: bool, collect: Collection[str], rngs: Rngs) -> Hidden:
        """Return the hidden states [batch, length, embed], and the intermediates that `collect` names.

        Args:
          network: the network, or the networks by name, as `networks` returns them.
          params: the parameters.
          batch: rows of labelled texts.
          train: whether dropout is on.
          collect: names of intermediates.
          rngs: keys of dropout; None without it.
        """

    @abstractmethod
    def networks(self, model: Any, execution: Execution) -> Any:
        """Return the network, or the networks by name."""

    def width(self, model: Any) -> int:
        """Return the width of the hidden states."""
        return int(model.hidden_size)

    def features(self, model: Any, shape: RowShape) -> dict[str, FeatureSpec]:
        """Return the features that it reads of a row of texts, without those of the head."""
        return encoder_features(shape)

    def frozen(self, layers: int | None) -> Frozen:
        """Return what is frozen: the embeddings and a number of the lowest layers, or the whole network for None."""
        return Frozen(dict.fromkeys(self.parts, layers))

    def flops(self, model: Any, length: int) -> int:
        """Return the matrix-product FLOPs of training on one row, without those of a vocabulary head."""
        return int(model.flops(length, 0))


class EncoderBody(Body):
    """Encoder."""

    parts: ClassVar[tuple[str, ...]] = ("encoder",)

    @override
    def init(self, model: Any, key: jax.Array, length: int) -> dict[str, Tree]:
        return {"encoder": init_encoder(model, named_key(key, "encoder"), length)}

    @override
    def networks(self, model: Any, execution: Execution) -> Any:
        return model.encoder(execution)

    @override
    def hidden(self, network: Any, params: Tree, batch: Batch, *, train: bool, collect: Collection[str], rngs: Rngs) -> Hidden:
        found: Hidden = network.apply(
            {"params": params["encoder"]},
            batch["encoder_input_tokens"],
            segment_ids=batch["encoder_segment_ids"],
            token_type_ids=batch["encoder_token_type_ids"],
            train=train,
            collect=frozenset(collect),
            rngs=rngs,
        )
        return found


class DecoderBody(Body):
    """Causal LM without its vocabulary head."""

    parts: ClassVar[tuple[str, ...]] = ("embeddings", "decoder")

    @override
    def init(self, model: Any, key: jax.Array, length: int) -> dict[str, Tree]:
        params = init_language_model(model, key)
        return {name: params[name] for name in self.parts}

    @override
    def networks(self, model: Any, execution: Execution) -> Any:
        return model.stacks(execution)

    @override
    def width(self, model: Any) -> int:
        return int(model.table_width)

    @override
    def frozen(self, layers: int | None) -> Frozen:
        return Frozen({"embeddings": None, "decoder": layers})

    @override
    def flops(self, model: Any, length: int) -> int:
        return int(model.flops(length, length)) - 6 * length * self.width(model) * int(model.require_vocab_size)

    @override
    def hidden(self, network: Any, params: Tree, batch: Batch, *, train: bool, collect: Collection[str], rngs: Rngs) -> Hidden:
        found: Hidden = network["decoder"].apply(
            {"params": params["decoder"]},
            word_embeddings(params),
            batch["encoder_input_tokens"],
            segment_ids=batch["encoder_segment_ids"],
            train=train,
            collect=frozenset(collect),
            rngs=rngs,
        )
        return found


class EncoderDecoderBody(DecoderBody):
    """Encoder-decoder without its vocabulary head: both networks read a text (Lewis et al. 2020, section 3.1).

    The decoder reads the text shifted right by one. In the first place it has the start token of its family: the text's last
    token, </s>, or another one, with which rows have the whole input.
    """

    parts: ClassVar[tuple[str, ...]] = ("embeddings", "encoder", "decoder")

    @override
    def features(self, model: Any, shape: RowShape) -> dict[str, FeatureSpec]:
        return super().features(model, shape) | ({} if model.start == "eos" else shifted_features(shape))

    @override
    def frozen(self, layers: int | None) -> Frozen:
        if layers is not None:
            raise UserError(f"FineTuning.freeze is {layers}, and an encoder-decoder has two stacks of layers: freeze it whole")
        return Frozen(dict.fromkeys(self.parts))

    @override
    def hidden(self, network: Any, params: Tree, batch: Batch, *, train: bool, collect: Collection[str], rngs: Rngs) -> Hidden:
        tokens, segment_ids = batch["encoder_input_tokens"], batch["encoder_segment_ids"]
        words, row = word_embeddings(params), {"segment_ids": segment_ids, "train": train}
        # Both stacks have layers of the same names, which must not draw the same dropout.
        own = {
            name: {key: jax.random.fold_in(value, place) for key, value in (rngs or {}).items()}
            for place, name in enumerate(network)
        }
        encoded, _ = network["encoder"].apply({"params": params["encoder"]}, words, tokens, **row, rngs=own["encoder"])
        shifted = batch.get("decoder_input_tokens")
        if shifted is None:
            last = jnp.take_along_axis(tokens, last_positions(segment_ids)[:, None], axis=1)
            shifted = jnp.concatenate([last, tokens[:, :-1]], axis=1)
        found: Hidden = network["decoder"].apply(
            {"params": params["decoder"]},
            words,
            shifted,
            **row,
            encoded=encoded,
            encoded_segment_ids=segment_ids,
            collect=frozenset(collect),
            rngs=own["decoder"],
        )
        return found


def last_positions(segment_ids: jax.Array) -> jax.Array:
    """Return the position of the last token of each row of segment ids int32[batch, length], 0 of an empty one: int32[batch]."""
    return jnp.maximum(jnp.sum((segment_ids > 0).astype(jnp.int32), axis=1) - 1, 0)


BODIES: Mapping[Kind, Body] = {"encoder": EncoderBody(), "decoder": DecoderBody(), "encoder_decoder": EncoderDecoderBody()}
