"""GPT-2 (Radford, Wu, Child, Luan, Amodei, Sutskever 2019): normalised before each sublayer, and after the last layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from typing_extensions import override

from bertfam.errors import UserError
from bertfam.layers.blocks import Maker
from bertfam.layers.execution import Execution
from bertfam.models.decoder import DecoderConfig
from bertfam.models.mapping import (
    WRITTEN_ACTIVATIONS,
    Entry,
    LanguageModelFamily,
    check_is,
    check_types,
    dense,
    language_model_architectures,
    norm,
    read_activation,
    stated,
)


@dataclass(frozen=True)
class Gpt2Config(DecoderConfig):
    """Configuration of a GPT-2; the defaults are GPT-2 small. See `DecoderConfig`.

    Kernels whose products are added to the residual sum start smaller by sqrt of their number (section 2.3).

    Attributes:
      position_initializer_range: standard deviation of the normal that the position table starts from, as in the published code.
      scale_attention: True to divide scores by sqrt(width of a head).
      scale_attention_by_layer: True to divide scores by the number of the layer, from 1; each layer is then compiled, as
        "unroll" does.
    """

    published_vocab_size: ClassVar[int | None] = 50_257

    max_length: int = 1024
    scale_residual_init: bool = True
    position_initializer_range: float = 0.01
    scale_attention: bool = True
    scale_attention_by_layer: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_above_zero("position_initializer_range")

    @property
    @override
    def position_deviation(self) -> float | None:
        return self.position_initializer_range

    @override
    def attentions(self, execution: Execution) -> tuple[Maker, ...]:
        (attention,) = super().attentions(execution)
        scale = self.head_dim**-0.5 if self.scale_attention else 1.0
        layers = range(self.num_layers if self.scale_attention_by_layer else 1)
        return tuple(partial(attention, scale=scale / (1 + layer)) for layer in layers)


# their name -> ours; these have no default that fits every model
SIZES = {
    "vocab_size": "vocab_size",
    "n_layer": "num_layers",
    "n_embd": "hidden_size",
    "n_head": "num_heads",
    "n_positions": "max_length",
}
NUMBERS = {
    "embd_pdrop": "embedding_dropout_rate",
    "resid_pdrop": "dropout_rate",
    "attn_pdrop": "attention_dropout_rate",
    "layer_norm_epsilon": "layer_norm_epsilon",
    "initializer_range": "initializer_range",
}
_FLAGS = {"scale_attn_weights": "scale_attention", "scale_attn_by_inverse_layer_idx": "scale_attention_by_layer"}
_TIE = {"tie_word_embeddings": "tie_embeddings"}
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def read_values(content: Mapping[str, Any], flags: Mapping[str, str]) -> dict[str, Any]:
    """Read config.json's content into the fields of a config like GPT-2's, but its activation; `flags`: their name -> ours.

    Raises:
      UserError: for a size that is not stated, or a value of another type.
    """
    flags = _TIE | dict(flags)
    check_types(content, SIZES, (int,), required=True)
    check_types(content, NUMBERS, (int, float))
    check_types(content, flags, (bool,))
    names = SIZES | NUMBERS | flags
    return {ours: content[theirs] for theirs, ours in names.items() if content.get(theirs) is not None}


def write_values(config: DecoderConfig, flags: Mapping[str, str]) -> dict[str, Any]:
    """Write a config like GPT-2's as config.json's content, without the model's type, its activation and "architectures"."""
    # Ids where no vocabulary says them; their class would put those of its own.
    values = dict.fromkeys(TOKENS) | stated(config, SIZES | NUMBERS | _TIE | dict(flags))
    return values | {"vocab_size": config.require_table_rows}


def config_from_huggingface(content: Mapping[str, Any]) -> Gpt2Config:
    """Read config.json's content into Gpt2Config; raises UserError for any other variant of GPT-2.

    `reorder_and_upcast_attn` is about 16 bits alone: scores are float32 here whatever it is.
    """
    if content.get("add_cross_attention"):
        raise UserError("config.json: add_cross_attention = True is not supported, only False")
    values = read_values(content, _FLAGS)
    check_types(content, ("n_inner",), (int,))
    activation = read_activation(content, "activation_function", "gelu_new")
    size = content.get("n_inner")
    size = 4 * values["hidden_size"] if size is None else size
    return Gpt2Config(feed_forward_size=size, activation=activation, **values)


def config_to_huggingface(config: Gpt2Config) -> dict[str, Any]:
    """Write Gpt2Config as config.json's content, without "architectures".

    Raises:
      UserError: for what transformers' GPT-2 cannot represent.
    """
    check_is(config, Gpt2Config(), "use_bias")
    return {
        "model_type": "gpt2",
        **write_values(config, _FLAGS),
        "n_inner": config.feed_forward_size,
        "activation_function": WRITTEN_ACTIVATIONS[config.activation],
    }


def stack_entries(words: str, positions: str, config: DecoderConfig) -> tuple[Entry, ...]:
    """Return the entries of the tables, of every layer, and of the head where it has a table of its own."""
    ours, theirs = "decoder/layers/", "transformer.h.{layer}."
    attention = []
    for place, name in enumerate(("query", "key", "value")):
        kernel = Entry(f"{ours}attention/{name}/kernel", f"{theirs}attn.c_attn.weight", "conv1d", part_of=(place, 3))
        bias = Entry(f"{ours}attention/{name}/bias", f"{theirs}attn.c_attn.bias", "vector", part_of=(place, 3))
        attention += [kernel, bias]
    untied = Entry("lm_head/kernel", "lm_head.weight", "matrix", vocabulary=True)
    return (
        Entry("embeddings/table", f"transformer.{words}.weight", "matrix", vocabulary=True),
        Entry("decoder/embeddings/position/table", f"transformer.{positions}.weight", "matrix"),
        *attention,
        *dense(f"{ours}attention/output", f"{theirs}attn.c_proj", "conv1d_from_heads"),
        *norm(f"{ours}attention_norm", f"{theirs}ln_1"),
        *dense(f"{ours}feed_forward/intermediate", f"{theirs}mlp.c_fc", "conv1d"),
        *dense(f"{ours}feed_forward/output", f"{theirs}mlp.c_proj", "conv1d"),
        *norm(f"{ours}feed_forward_norm", f"{theirs}ln_2"),
        Entry("classifier/output/kernel", "score.weight", "linear"),
        *([] if config.tie_embeddings else [untied]),
    )


def entries(config: Gpt2Config) -> tuple[Entry, ...]:
    """Return the entries of every parameter."""
    return (*stack_entries("wte", "wpe", config), *norm("decoder/norm", "transformer.ln_f"))


# The matrix of what is seen, which old files have beside each layer's kernels.
BUFFERS = (".attn.bias", ".attn.masked_bias")

GPT2 = LanguageModelFamily(
    model_type="gpt2",
    config=Gpt2Config,
    objective="objectives/causal_lm.gin",
    prefix="transformer.",
    architectures=language_model_architectures("GPT2LMHeadModel", classifier="GPT2ForSequenceClassification"),
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=entries,
    tied=("lm_head.weight", "transformer.wte.weight"),
    buffers=BUFFERS,
    old_names={},
)
