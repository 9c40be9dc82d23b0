"""Six extensions of bertfam in one module outside the package, which a command imports by `--module_import=toy`.

    family     ToyConfig        encoder whose layers mix tokens by their mean
    objective  ToyObjective     masked tokens, predicted without a head of their own
    noise      RepeatedTokens   the token before in place of some tokens
    rows       FirstTokens      the beginning of each document
    optimizer  SignMomentum     the sign of the momentum
    hook       ParameterNorm    norm of all parameters, every few steps

Each subclasses the base class that the package's own do, and works with every built-in part. toy.gin is a run of all six.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from typing_extensions import override

from bertfam.config import register
from bertfam.corruption import keys
from bertfam.corruption.corruption import FRAMED, RowForm, TextCorruption
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.layout import RowLayout
from bertfam.data.rows.sentence_pairs import frame_segments
from bertfam.data.token_cache.documents import Documents
from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, encoder_features, masked_features
from bertfam.kernels.attention.patterns import Pattern
from bertfam.layers.execution import Execution
from bertfam.layers.feed_forward import FeedForward
from bertfam.layers.initializers import truncated_normal
from bertfam.layers.lookup import gather_positions
from bertfam.layers.norm import LayerNorm
from bertfam.layers.stack import Stack
from bertfam.models import bert
from bertfam.models.encoder import EncoderConfig, check_collectable, init_encoder, word_table
from bertfam.models.families import register_family
from bertfam.models.mapping import Entry, Family, dense, norm
from bertfam.objectives.objective import Batch, LossOut, Objective, Predictions, Sum, Tree, masked_cross_entropy
from bertfam.training.hooks.base import Hook
from bertfam.training.optimizers import Optimizer
from bertfam.training.state import TrainState

_EXECUTION = Execution()

# -- Family


@dataclass(frozen=True)
class ToyConfig(bert.BertConfig):
    """Configuration of the toy family: BERT's embeddings and head, and layers without attention."""

    @property
    @override
    def patterns(self) -> tuple[Pattern, ...]:
        return ()

    @override
    def encoder(self, execution: Execution = _EXECUTION) -> "ToyEncoder":
        return ToyEncoder(self, execution)

    @override
    def flops(self, length: int, predictions: int) -> int:
        size, words = self.hidden_size, self.require_vocab_size
        layer = length * (2 * length * size + 4 * size * self.feed_forward_size)
        return 3 * (self.num_layers * layer + predictions * (2 * size * size + 2 * size * words))


class ToyEncoder(nn.Module):
    """Embeddings and a stack of toy layers; called as `bertfam.models.bert.Encoder` is."""

    config: ToyConfig
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
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Encode int32[batch, length] to dtype[batch, length, embed], with the intermediates that `collect` names."""
        check_collectable(collect)
        embedded = bert.Embeddings(self.config, self.execution, name="embeddings")(
            tokens, positions=positions, token_type_ids=token_type_ids, train=train
        )
        # [batch, length, length], the same for all tokens of an example; padding sees padding
        same = (segment_ids[:, :, None] == segment_ids[:, None, :]).astype(embedded.dtype)
        weights = same / jnp.sum(same, axis=-1, keepdims=True)
        layers = Stack(
            partial(ToyLayer, self.config, self.execution), self.config.num_layers, execution=self.execution, name="layers"
        )
        hidden, collected = layers(embedded, {"weights": weights}, train=train, collect=collect)
        if "hidden_states" in collected:
            collected["hidden_states"] = jnp.concatenate([embedded[None], collected["hidden_states"]])
        return hidden, collected


class ToyLayer(nn.Module):
    """Layer x = norm(x + mean(x)); x = norm(x + feed_forward(x))."""

    config: ToyConfig
    execution: Execution

    @nn.compact
    def __call__(
        self, hidden: jax.Array, *, weights: jax.Array, train: bool, collect: frozenset[str]
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Apply the layer to [batch, length, embed]; mean(x) is weights [batch, length, length] times x."""
        config, dtype = self.config, self.execution.compute_dtype
        normalise = partial(LayerNorm, config.layer_norm_epsilon, dtype)
        feed_forward = FeedForward(
            config.feed_forward_size, config.activation, dtype, truncated_normal(config.initializer_range), name="feed_forward"
        )
        hidden = normalise(name="mixing_norm")(hidden + weights @ hidden)
        hidden = normalise(name="feed_forward_norm")(hidden + feed_forward(hidden, train=train))
        hidden = nn.with_logical_constraint(hidden, ("batch", "length", None))
        return hidden, {"hidden_states": hidden} if "hidden_states" in collect else {}


def config_from_huggingface(content: Mapping[str, Any]) -> ToyConfig:
    """Read config.json's content into ToyConfig; raise UserError for an option that it does not have."""
    return ToyConfig(**bert.read_values(content))


def config_to_huggingface(config: ToyConfig) -> dict[str, Any]:
    """Write ToyConfig as config.json's content, without "architectures"."""
    return {"model_type": "toy", **bert.write_values(config)}


def entries(config: ToyConfig) -> tuple[Entry, ...]:
    """Return the entries of every parameter: its path in our tree, and the name of its tensor in files."""
    layer, theirs = "encoder/layers/", "toy.layer.{layer}."
    tables = {"word": "words", "position": "positions", "token_type": "types"}
    return (
        *(
            Entry(f"encoder/embeddings/{ours}/table", f"toy.{name}.weight", "matrix", vocabulary=ours == "word")
            for ours, name in tables.items()
        ),
        *norm("encoder/embeddings/norm", "toy.norm"),
        *norm(f"{layer}mixing_norm", f"{theirs}mixing_norm"),
        *dense(f"{layer}feed_forward/intermediate", f"{theirs}intermediate"),
        *dense(f"{layer}feed_forward/output", f"{theirs}output"),
        *norm(f"{layer}feed_forward_norm", f"{theirs}feed_forward_norm"),
        *bert.masked_lm_entries(config, "head.dense", "head.norm", "head.decoder", "head.bias"),
    )


TOY = Family(
    model_type="toy",
    config=ToyConfig,
    objective="objectives/mlm.gin",
    prefix="toy.",
    architectures={frozenset({"encoder"}): "ToyModel", frozenset({"encoder", "mlm_head"}): "ToyForMaskedLM"},
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=entries,
    tied=("head.decoder.weight", "toy.words.weight"),
    buffers=(),
)

# A family is registered by the names of its config and of its table; everything else, by `register`.
register_family(__name__, "ToyConfig", "TOY")


# -- Objective


@register
@dataclass(frozen=True)
class ToyObjective(Objective):
    """L = mean over masked positions of CE(vocabulary), with logits = hidden times the word table.

    `init` makes params {"encoder"}, without carry or aux.

    Attributes:
      model: the encoder, of any family.
      execution: how it is computed.
    """

    model: EncoderConfig
    execution: Execution = Execution()

    terms: ClassVar[tuple[str, ...]] = ("toy",)

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        if shape.length > self.model.max_length:
            raise UserError(f"Stage.length {shape.length} is more than max_length {self.model.max_length} of the model")
        return encoder_features(shape) | masked_features(shape)

    @override
    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        return {"encoder": init_encoder(self.model, key, shape.length)}, {}, {}

    @override
    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return {"toy": jnp.sum(batch["masked_loss_weights"])}

    @override
    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        logits = self._logits(params, batch, key=key, train=train)
        total, accuracy = masked_cross_entropy(logits, batch["masked_target_tokens"], batch["masked_loss_weights"])
        return LossOut({"toy": total}, carry, {"toy_loss": Sum(total, accuracy.weight), "toy_accuracy": accuracy})

    @override
    def predictions(self, params: Tree, batch: Batch) -> Predictions:
        probabilities = jax.nn.softmax(self._logits(params, batch, key=None, train=False))
        return Predictions(
            inputs=batch["encoder_input_tokens"],
            segments=batch["encoder_segment_ids"],
            positions=batch["masked_positions"],
            targets=batch["masked_target_tokens"],
            weights=batch["masked_loss_weights"],
            tokens=jnp.argmax(probabilities, axis=-1),
            probabilities=jnp.max(probabilities, axis=-1),
        )

    def _logits(self, params: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> jax.Array:
        """Compute the logits float32[batch, predictions, vocabulary]."""
        encoder: Any = self.model.encoder(self.execution)
        hidden, _ = encoder.apply(
            {"params": params["encoder"]},
            batch["encoder_input_tokens"],
            segment_ids=batch["encoder_segment_ids"],
            positions=batch.get("encoder_positions"),
            token_type_ids=batch["encoder_token_type_ids"],
            train=train,
            rngs=self.execution.dropout_rngs(key),
        )
        words = word_table(params)[: self.model.require_vocab_size]
        return (gather_positions(hidden, batch["masked_positions"]) @ words.T.astype(hidden.dtype)).astype(jnp.float32)


# -- Noise

_STREAM = 1  # of the random words of a row's key; the rows themselves use the streams 16 to 31


@register
@dataclass(frozen=True)
class RepeatedTokens(TextCorruption):
    """Noise that puts the token before in place of a share of the tokens, which are to be predicted.

    Attributes:
      rate: share of a row's tokens that it replaces.
    """

    rate: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate {self.rate} is not in (0, 1]")

    @override
    def predictions(self, length: int) -> int:
        return math.ceil(self.rate * length)

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return encoder_features(shape) | masked_features(shape)

    @override
    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        original, allowed = rows["encoder_input_tokens"], rows["maskable"]
        slots = self.predictions(original.shape[1])
        # [batch, length]: random numbers of the row's key alone, so that any process computes the same row
        lots = np.where(allowed, keys.uniform(keys.bits(row_keys, _STREAM, original.shape[1])), 2.0)
        counts = np.minimum(slots, np.ceil(self.rate * np.count_nonzero(allowed, axis=1)).astype(int))
        used = np.arange(slots) < counts[:, None]
        # [batch, slots]: ascending where they are used, 0 elsewhere
        positions = np.sort(np.where(used, np.argsort(lots, axis=1)[:, :slots], original.shape[1]), axis=1) * used
        row, slot = np.nonzero(used)
        corrupted = original.copy()
        corrupted[row, positions[row, slot]] = original[row, positions[row, slot] - 1]
        targets = np.where(used, np.take_along_axis(original, positions, axis=1), tokens.pad)
        return {name: value for name, value in rows.items() if name not in ("maskable", "units")} | {
            "encoder_input_tokens": corrupted,
            "masked_positions": positions.astype(np.int32),
            "masked_target_tokens": targets.astype(np.int32),
            "masked_loss_weights": used.astype(np.float32),
        }


# -- Rows


@register
@dataclass(frozen=True)
class FirstTokens(RowLayout):
    """Rows `[CLS] text [SEP]` of the first tokens of each document, as many as fit."""

    @override
    def examples(self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED) -> "Beginnings":
        return Beginnings(documents, length, tokens)


@dataclass(frozen=True)
class Beginnings:
    """Clean rows of the beginnings of documents, by index.

    Attributes:
      documents: the text.
      length: tokens of a row.
      tokens: the vocabulary's ids.
    """

    documents: Documents
    length: int
    tokens: TokenIds

    @property
    def warnings(self) -> list[str]:
        """Warnings about the text, a line each."""
        return []

    def __len__(self) -> int:
        return len(self.documents)

    def rows(self, examples: np.ndarray, row_keys: np.ndarray) -> dict[str, np.ndarray]:
        """Return the rows of the examples int64[n]; nothing is drawn."""
        starts = self.documents.sentence_starts[self.documents.sentence_bounds]
        begin, end = starts[examples], starts[examples + 1]
        return frame_segments(
            self.documents, self.length, self.tokens, (begin, np.minimum(end - begin, self.length - 2)), (end, np.zeros_like(end))
        )


# -- Optimizer


@register
@dataclass(frozen=True)
class SignMomentum(Optimizer):
    """Optimizer theta -= rate sign(m), with the momentum m = decay m + g.

    Attributes:
      decay: decay of the momentum.
    """

    decay: float = 0.9

    @override
    def direction(self, tensors: Tree) -> optax.GradientTransformation:
        return optax.chain(optax.trace(self.decay), optax.scale_by_sign())


# -- Hook


@register
@dataclass(frozen=True)
class ParameterNorm(Hook):
    """Metric hook that writes the Euclidean norm of all parameters.

    Attributes:
      every: updates between two lines of metrics.jsonl.
    """

    every: int = 1

    phase: ClassVar[str] = "parameters"

    @override
    def due(self, step: int) -> bool:
        return step % self.every == 0

    @override
    def metrics(self, step: int, state: TrainState) -> Mapping[str, float]:
        return {"norm": float(_norm(state.params))}


_norm = jax.jit(optax.tree.norm)
