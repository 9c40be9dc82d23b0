"""Longformer (Beltagy, Peters, Cohan 2020): RoBERTa with attention within a window and a few global tokens."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.kernels.attention.patterns import GlobalTokens, Pattern, Window
from bertfam.layers.attention.dot_product import Row
from bertfam.layers.attention.global_tokens import PROJECTIONS, GlobalAttention
from bertfam.layers.execution import Execution
from bertfam.layers.heads.classification import Classifier
from bertfam.layers.initializers import truncated_normal
from bertfam.layers.stack import shortest_period
from bertfam.models import bert, roberta
from bertfam.models.bert import BertConfig
from bertfam.models.encoder import pooler
from bertfam.models.mapping import Entry, Family, dense
from bertfam.models.roberta import RobertaConfig

GlobalChoice = Literal["none", "first"]
_EXECUTION = Execution()


@dataclass(frozen=True)
class LongformerConfig(RobertaConfig):
    """Configuration of a Longformer; the defaults are Longformer-base. See `RobertaConfig`.

    Attributes:
      window: width of the window, both sides together: `|i - j| <= window / 2`; or the widths of all layers.
      dilation: gap between the places of a window, of which it then has as many, further away; or the gaps of all layers.
      global_tokens: the tokens that are global where none are given: "none", or "first", the first token of each example.
      max_global_tokens: the largest number of global tokens in a row; further ones are ignored.
      global_projections: True for the projections of global tokens. Without them, as in pretraining with masked tokens, which
        would not train them, files get copies of the others, as the paper's recipe has it (section 5).
    """

    adopts: ClassVar[tuple[type, ...]] = (RobertaConfig, BertConfig)
    copied_modules: ClassVar[Mapping[str, str]] = {f"{name}_global": name for name in PROJECTIONS}

    max_length: int = 4096
    window: int | tuple[int, ...] = 512
    dilation: int | tuple[int, ...] = 1
    global_tokens: GlobalChoice = "none"
    max_global_tokens: int = 64
    global_projections: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.causal:
            raise self._error("causal", "does not go with the attention of this family; leave it out")
        self._check_at_least(max_global_tokens=1)
        self._check_among(global_tokens=("none", "first"))
        for name in ("window", "dilation"):
            values = getattr(self, name)
            if isinstance(values, tuple) and len(values) != self.num_layers:
                raise self._error(name, f"must have {self.num_layers} (num_layers) values")
            if any(type(value) is not int or value < 1 for value in (values if isinstance(values, tuple) else (values,))):
                raise self._error(name, "must be a whole number of at least 1, or one for each layer")
        if self.global_tokens != "none" and not self.global_projections:
            raise self._error("global_tokens", "requires global_projections = True")

    @property
    def layer_windows(self) -> tuple[Window, ...]:
        """Window of each layer."""
        widths, gaps = (
            values if isinstance(values, tuple) else (values,) * self.num_layers for values in (self.window, self.dilation)
        )
        return tuple(Window(gap * (width // 2), gap * (width // 2), gap) for width, gap in zip(widths, gaps, strict=True))

    @property
    @override
    def layer_fields(self) -> Mapping[str, tuple[Any, ...]]:
        return {name: values for name in ("window", "dilation") if isinstance(values := getattr(self, name), tuple)}

    @property
    @override
    def patterns(self) -> tuple[Pattern, ...]:
        windows = tuple(dict.fromkeys(self.layer_windows))
        return windows if self.global_tokens == "none" else tuple(GlobalTokens(one, self.max_global_tokens) for one in windows)

    @override
    def attentions(self, execution: Execution = _EXECUTION) -> tuple[Callable[..., nn.Module], ...]:
        attention = partial(
            GlobalAttention,
            self.num_heads,
            self.head_dim,
            self.attention_dropout_rate,
            execution,
            truncated_normal(self.initializer_range),
            most=self.max_global_tokens,
            has_global=self.global_projections,
        )
        return tuple(partial(attention, window=window) for window in shortest_period(self.layer_windows))

    @override
    def span_classifier(self, execution: Execution = _EXECUTION) -> Classifier:
        raise UserError(f"{type(self).__name__} has no head for questions here: fine-tune another encoder")

    @override
    def choice_classifier(self, execution: Execution = _EXECUTION) -> Classifier:
        raise UserError(f"{type(self).__name__} has no head for choices here: fine-tune another encoder")

    @override
    def classifier(self, outputs: int, execution: Execution = _EXECUTION) -> Classifier:
        if not self.global_projections:
            raise self._error("global_projections", "must be True to fine-tune a classifier, whose [CLS] is a global token")
        encoder = dataclasses.replace(self, global_tokens="first").encoder(execution)
        return super().classifier(outputs, execution)._replace(encoder=encoder)

    @override
    def encoder(self, execution: Execution = _EXECUTION) -> "Encoder":
        return Encoder(self, execution)

    @override
    def attention_pairs(self, tokens: int) -> int:
        return sum(window.pairs(tokens) for window in self.layer_windows)  # what global tokens add does not count


class Encoder(bert.Encoder):
    """Embeddings and the stack of layers, with global tokens."""

    config: LongformerConfig

    def __call__(
        self,
        tokens: jax.Array,
        *,
        segment_ids: jax.Array,
        positions: jax.Array | None = None,
        token_type_ids: jax.Array,
        train: bool,
        collect: frozenset[str] = frozenset(),
        global_tokens: jax.Array | None = None,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Run the encoder.

        Args:
          tokens: int32[batch, length].
          segment_ids: int32[batch, length], which packed example; 0 = padding. A query sees keys of its own segment.
          positions: int32[batch, length], restarting at 0 in each example, for packed rows; None promises one example a row.
          token_type_ids: int32[batch, length].
          train: True to apply dropout; requires a "dropout" key.
          collect: names among "hidden_states", "attention_probs" (before dropout), "attention_queries" and "attention_keys".
          global_tokens: bool[batch, length], at most `max_global_tokens` in a row; None: those that the config chooses.

        Returns:
          dtype[batch, length, embed], and a dict with what `collect` names, as of `bertfam.models.bert.Encoder`.

        Raises:
          UserError: if rows are longer than `max_length`, or the attention backend does not support the request.
        """
        if global_tokens is None and self.config.global_tokens == "first":
            before = jnp.pad(segment_ids, [(0, 0), (1, 0)])[:, :-1]
            global_tokens = (segment_ids > 0) & (segment_ids != before)
        arrays = None if global_tokens is None else {"global_tokens": global_tokens}
        return self._encoded(tokens, Row(segment_ids, arrays=arrays), positions, token_type_ids, train, collect)


def config_from_huggingface(content: Mapping[str, Any]) -> LongformerConfig:
    """Read config.json's content into LongformerConfig; raises UserError for any other variant of Longformer."""
    given = content.get("attention_window", 512)
    windows = given if isinstance(given, list) else [given]
    if not windows or any(type(width) is not int or width < 2 or width % 2 for width in windows):
        raise UserError(f"config.json: attention_window = {given!r} must be an even number, or one for each layer")
    values = roberta.values_from_huggingface(content)
    if isinstance(given, list) and len(given) != values["num_layers"]:
        raise UserError(f"config.json: attention_window has {len(given)} values for {values['num_layers']} layers")
    return LongformerConfig(window=windows[0] if len(set(windows)) == 1 else tuple(windows), **values)


def config_to_huggingface(config: LongformerConfig) -> dict[str, Any]:
    """Write LongformerConfig as config.json's content, without "architectures"; raises UserError for a dilated window."""
    if any(window.dilation > 1 for window in config.layer_windows):
        raise UserError(
            f"LongformerConfig.dilation = {config.dilation} has no place in transformers' class, whose windows have none"
        )
    windows = [2 * (window.left or 0) for window in config.layer_windows]
    return roberta.config_to_huggingface(config) | {"model_type": "longformer", "attention_window": windows}


def entries(config: LongformerConfig) -> tuple[Entry, ...]:
    """Return the entries of every parameter of the encoder and of all heads."""
    head = ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias")
    ours, theirs = "encoder/layers/attention/", "longformer.encoder.layer.{layer}.attention.self."
    own = "_global" if config.global_projections else ""
    global_entries = [entry for name in PROJECTIONS for entry in dense(f"{ours}{name}{own}", f"{theirs}{name}_global")]
    # Copies come first: of several tensors of one parameter, the last one is read.
    return (
        *global_entries,
        *bert.encoder_entries("longformer.", config),
        *bert.masked_lm_entries(config, *head),
        *bert.dense_classifier_entries(),
    )


LONGFORMER = Family(
    model_type="longformer",
    config=LongformerConfig,
    objective="objectives/roberta.gin",
    prefix="longformer.",
    architectures={
        frozenset({"encoder"}): "LongformerModel",
        frozenset({"encoder", "mlm_head"}): "LongformerForMaskedLM",
        frozenset({"encoder", "pooler"}): "LongformerModel",
        frozenset({"encoder", "classifier"}): "LongformerForSequenceClassification",
        frozenset({"encoder", "token_classifier"}): "LongformerForTokenClassification",
    },
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=entries,
    fit_vocabulary=roberta.fit_vocabulary,
    padding_id=roberta.padding_id,
    heads=lambda config: {"pooler": pooler(config)},
    aliases={"lm_head.decoder.bias": "lm_head.bias"},
    tied=("lm_head.decoder.weight", "longformer.embeddings.word_embeddings.weight"),
    buffers=("position_ids", "token_type_ids"),
)
