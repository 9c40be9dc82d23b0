"""Masked language model (Devlin et al. 2019, section 3.1, task 1), alone or together with a causal one of the same encoder."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, encoder_features, masked_features
from bertfam.kernels.chunked_cross_entropy import VocabularyLoss, chunked_cross_entropy, has_kernel
from bertfam.layers.execution import Execution
from bertfam.layers.heads.pretraining import token_logits
from bertfam.layers.initializers import named_key
from bertfam.layers.lookup import gather_positions, put_positions
from bertfam.models.encoder import MaskedLmConfig, init_encoder, init_masked_lm_head, word_table
from bertfam.objectives.objective import Batch, LossOut, Objective, Predictions, Sum, Tree, masked_cross_entropy


@dataclass(frozen=True)
class Mlm(Objective):
    """L = mean over masked positions of CE(vocabulary).

    `init` makes params {"encoder", "mlm_head"}, without carry or aux.

    Attributes:
      model: the encoder.
      execution: how it is computed; never part of a checkpoint.
    """

    model: MaskedLmConfig
    execution: Execution = Execution()

    terms: ClassVar[tuple[str, ...]] = ("mlm",)

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        if shape.length > self.model.max_length:
            limit = f"{type(self.model).__name__}.max_length {self.model.max_length}"
            raise UserError(
                f"Stage.length {shape.length} is more than {limit}; shorten the rows, or enlarge the model's table of positions"
            )
        alone = [pattern for pattern in self.model.patterns if not pattern.packs]
        if alone and shape.examples > 1:
            raise UserError(
                f"rows are packed, but tokens attend to {alone[0].describe()}, which requires rows of one document: set "
                "TextData.rows = @DocSentences()"
            )
        return encoder_features(shape) | masked_features(shape)

    @override
    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        encoder = init_encoder(self.model, named_key(key, "encoder"), shape.length)
        head = init_masked_lm_head(self.model, named_key(key, "mlm_head"), encoder)
        return {"encoder": encoder, "mlm_head": head}, {}, {}

    @override
    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return {"mlm": jnp.sum(batch["masked_loss_weights"])}

    @override
    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        term, metrics = self.masked_loss(params, self.encoded(params, batch, key=key, train=train), batch)
        return LossOut({"mlm": term}, carry, metrics)

    def encoded(self, params: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> jax.Array:
        """Run the encoder: [batch, length, embed]."""
        return self._encode(params, batch, key=key, train=train)[0]

    @override
    def activations(self, params: Tree, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        _, collected = self._encode(params, batch, key=None, train=False, collect=frozenset({"hidden_states"}))
        return {"encoder": (collected["hidden_states"], batch["encoder_segment_ids"] > 0)}

    def _encode(
        self, params: Tree, batch: Batch, *, key: jax.Array | None, train: bool, collect: frozenset[str] = frozenset()
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        found: Any = self.model.encoder(self.execution).apply(
            {"params": params["encoder"]},
            batch["encoder_input_tokens"],
            **self._inputs(batch),
            train=train,
            collect=collect,
            rngs=self.execution.dropout_rngs(key),
        )
        return found

    def _inputs(self, batch: Batch) -> dict[str, Any]:
        """Return the arguments of the encoder that a batch has, beside the tokens."""
        return {
            "segment_ids": batch["encoder_segment_ids"],
            "positions": batch.get("encoder_positions"),
            "token_type_ids": batch["encoder_token_type_ids"],
        }

    def masked_loss(self, params: Tree, hidden: jax.Array, batch: Batch) -> tuple[jax.Array, dict[str, Sum]]:
        """Compute the term and the metrics at the masked positions of hidden [batch, length, embed]."""
        targets, weights = batch["masked_target_tokens"], batch["masked_loss_weights"]
        # [batch, length, embed] -> [batch, predictions, embed]
        factors = self.factors(params, gather_positions(hidden, self.sources(batch)))
        vocabulary = self.model.require_vocab_size
        if has_kernel(*factors[:2]):
            sums = chunked_cross_entropy(*factors, targets, weights, VocabularyLoss(vocabulary, chunk=targets.shape[1]))
            loss, accuracy = sums.loss, Sum(sums.correct, jnp.sum(weights))
        else:
            loss, accuracy = masked_cross_entropy(token_logits(*factors, vocabulary), targets, weights)
        return loss, {"mlm_loss": Sum(loss, accuracy.weight), "mlm_accuracy": accuracy}

    @override
    def predictions(self, params: Tree, batch: Batch) -> Predictions:
        hidden = self.encoded(params, batch, key=None, train=False)
        probabilities = jax.nn.softmax(self.masked_logits(params, hidden, batch))
        return Predictions.at_masked(batch, probabilities)

    def masked_logits(self, params: Tree, hidden: jax.Array, batch: Batch) -> jax.Array:
        """Return float32[batch, predictions, padded vocabulary] at the masked positions of hidden [batch, length, embed]."""
        # [batch, length, embed] -> [batch, predictions, embed] -> [batch, predictions, vocab]
        return self.logits(params, gather_positions(hidden, self.sources(batch)))

    def sources(self, batch: Batch) -> jax.Array:
        """Return the positions int32[batch, predictions] whose hidden states predict the masked tokens: those of the tokens."""
        return batch["masked_positions"]

    def logits(self, params: Tree, hidden: jax.Array) -> jax.Array:
        """Compute the logits float32[batch, places, padded vocabulary] of hidden [batch, places, embed]."""
        return token_logits(*self.factors(params, hidden), self.model.require_vocab_size)

    def factors(self, params: Tree, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Apply the masked-token head to hidden [batch, places, embed] up to its product with the word table."""
        head = self.model.masked_lm_head(self.execution)
        found: Any = head.apply({"params": params["mlm_head"]}, hidden, word_table(params), method="factors")
        return found


@dataclass(frozen=True)
class CausalAndMasked(Mlm):
    """L = s * mean over tokens t of CE(x_t | x_1 .. x_t-1) + (1 - s) * mean over masked positions of CE(vocabulary).

    The first s of the rows of a batch are read without their noise and with causal attention, and every token of a document is
    predicted from those before it; the others are those of a masked language model. Both use the masked-token head: the mixture
    of GPT-BERT (Charpentier and Samuel 2024, section 2). A stage with s = 1 pretrains the encoder of a later masked language
    model as a causal one (Gisserot-Boukhlef et al. 2025).

    Attributes:
      model: the encoder, whose `causal` must be False; causal rows are read by the same parameters with True.
      execution: how it is computed; never part of a checkpoint.
      causal_share: s, the share of causal rows, above 0 and at most 1; GPT-BERT's is 1/16.
      shifted: whether a masked token is predicted at the position before it, as a causal one is; GPT-BERT's are.
    """

    causal_share: float = 0.5
    shifted: bool = False

    terms: ClassVar[tuple[str, ...]] = ("causal", "mlm")

    def __post_init__(self) -> None:
        if not 0 < self.causal_share <= 1:
            raise ValueError(f"causal_share {self.causal_share} must be above 0 and at most 1; without causal rows use @Mlm()")
        if not hasattr(self.model, "causal"):
            raise UserError(
                f"CausalAndMasked reads rows with causal attention, which {type(self.model).__name__} has not; use a BertConfig "
                "or a ModernBertConfig, say"
            )
        if self.model.causal:
            raise UserError(
                f"{type(self.model).__name__}.causal is True, but masked rows are read in both directions; leave it out"
            )

    @property
    @override
    def coefficients(self) -> Mapping[str, float]:
        return {"causal": self.causal_share, "mlm": 1 - self.causal_share}

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        self.check_rows(shape.rows, "a batch")
        return super().features(shape)

    @property
    @override
    def of_equal_rows(self) -> Objective:
        return dataclasses.replace(self, causal_share=1.0)

    @override
    def check_rows(self, rows: int, name: str) -> None:
        causal = self.causal_share * rows
        if rows > 1 and abs(causal - round(causal)) > 1e-6 * rows:
            raise UserError(
                f"CausalAndMasked.causal_share is {self.causal_share:g}, which of the {rows} rows of {name} is {causal:g}: "
                "change it, Stage.batch_size or Run.microbatches so that it is a whole number of rows"
            )

    @override
    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        causal, masked = self._split(batch)
        return {"causal": jnp.sum(_next_tokens(causal)[2]), "mlm": jnp.sum(masked["masked_loss_weights"])}

    @override
    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        causal, masked = self._split(batch)
        keys = (None, None) if key is None else jax.random.split(key)
        terms = {"causal": jnp.zeros(()), "mlm": jnp.zeros(())}
        metrics = {f"{term}_{name}": Sum(jnp.zeros(()), jnp.zeros(())) for term in terms for name in ("loss", "accuracy")}
        if len(causal["encoder_input_tokens"]):
            terms["causal"], own = self._causal_loss(params, causal, key=keys[0], train=train)
            metrics |= own
        if len(masked["encoder_input_tokens"]):
            terms["mlm"], own = self.masked_loss(params, self.encoded(params, masked, key=keys[1], train=train), masked)
            metrics |= own
        return LossOut(terms, carry, metrics)

    def _split(self, batch: Batch) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Return the causal and the masked rows of a batch, or of a microbatch."""
        count = round(self.causal_share * len(batch["encoder_input_tokens"]))
        return {name: value[:count] for name, value in batch.items()}, {name: value[count:] for name, value in batch.items()}

    def _causal_loss(self, params: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> tuple[jax.Array, dict[str, Sum]]:
        """Compute the term and the metrics of causal rows."""
        tokens, targets, weights = _next_tokens(batch)
        model: Any = dataclasses.replace(self.model, causal=True)  # type: ignore[type-var]
        hidden = Mlm(model, self.execution).encoded(params, dict(batch) | {"encoder_input_tokens": tokens}, key=key, train=train)
        settings = VocabularyLoss(self.model.require_vocab_size)
        sums = chunked_cross_entropy(*self.factors(params, hidden), targets, weights, settings)
        count = jnp.sum(weights)
        metrics = {"causal_loss": Sum(sums.cross_entropy, count), "causal_accuracy": Sum(sums.correct, count)}
        return sums.loss, jax.lax.stop_gradient(metrics)

    @override
    def sources(self, batch: Batch) -> jax.Array:
        places = batch["masked_positions"]
        return jnp.maximum(places - 1, 0) if self.shifted else places

    @override
    def flops(self, shape: RowShape) -> int:
        model: Any = dataclasses.replace(self.model, causal=True)  # type: ignore[type-var]
        causal, masked = model.flops(shape.length, shape.length), super().flops(shape)
        return round(self.causal_share * causal + (1 - self.causal_share) * masked)


def _next_tokens(batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the clean tokens int32[batch, length], the token after each, and 1 where that is of the same document, else 0."""
    tokens, segments = batch["encoder_input_tokens"], batch["encoder_segment_ids"]
    used = batch["masked_loss_weights"] > 0
    clean = put_positions(tokens, batch["masked_positions"], batch["masked_target_tokens"], used)
    ends = ((0, 0), (0, 1))
    following, after = jnp.pad(clean[:, 1:], ends), jnp.pad(segments[:, 1:], ends)
    return clean, following, ((segments > 0) & (segments == after)).astype(jnp.float32)
