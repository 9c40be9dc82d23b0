"""OPT (Zhang, Roller, Goyal et al. 2022): GPT-2 with ReLU, and a position table that begins with two unused rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import flax.linen as nn
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.features import Start
from bertfam.layers.activations import Activation
from bertfam.layers.blocks import PostNormBlock, PreNormBlock
from bertfam.models.decoder import DecoderConfig
from bertfam.models.gpt2 import TOKENS
from bertfam.models.mapping import (
    WRITTEN_ACTIVATIONS,
    Entry,
    LanguageModelFamily,
    Layout,
    check_is,
    check_types,
    language_model_architectures,
    norm,
    read_activation,
    stated,
)
from bertfam.models.sizes import OffsetPositions

Block = Literal["post_norm", "pre_norm"]
_BLOCKS: dict[Block, type[nn.Module]] = {"post_norm": PostNormBlock, "pre_norm": PreNormBlock}


@dataclass(frozen=True)
class OptConfig(OffsetPositions, DecoderConfig):
    """Configuration of an OPT; the defaults are OPT-125M. See `DecoderConfig`.

    OPT-350M has the word table 512 wide and normalises after each residual sum: `embedding_size` 512, `block` "post_norm", and no
    `last_norm`. Initial values are those of section 2.2: a deviation of 0.006, divided by sqrt(2 num_layers) where products are
    added to the residual sum. There is no dropout on embeddings. Every prompt begins with </s>, as of the published tokenizer.

    Attributes:
      block: place of a layer's norms: "post_norm", after each residual sum; "pre_norm", before each sublayer.
      last_norm: True if a LayerNorm follows the last layer.
      position_offset: rows of the position table that lie before that of position 0 and are never read.
      embedding_size: embedding dimension of the word table, with linear projections to `hidden_size` and back; None:
        `hidden_size`, without projections.
    """

    published_vocab_size: ClassVar[int | None] = 50_272

    max_length: int = 2048
    block: Block = "pre_norm"
    last_norm: bool = True
    position_offset: int = 2
    embedding_size: int | None = None
    activation: Activation = "relu"
    embedding_dropout_rate: float = 0.0
    initializer_range: float | None = 0.006
    scale_residual_init: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(position_offset=0, embedding_size=1)
        self._check_among(block=_BLOCKS)

    @property
    @override
    def block_class(self) -> type[nn.Module]:
        return _BLOCKS[self.block]

    @property
    @override
    def table_width(self) -> int:
        return self.embedding_size or self.hidden_size

    @property
    @override
    def start(self) -> Start:
        return "eos"


# their name -> ours; these have no default that fits every model
_SIZES = {
    "vocab_size": "vocab_size",
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_heads",
    "ffn_dim": "feed_forward_size",
    "max_position_embeddings": "max_length",
}
_NUMBERS = {"dropout": "dropout_rate", "attention_dropout": "attention_dropout_rate", "init_std": "initializer_range"}
_FLAGS = {"enable_bias": "use_bias", "tie_word_embeddings": "tie_embeddings"}
_VALUES = _SIZES | _NUMBERS | _FLAGS
# Fields for which their class has no place.
_FIXED = ("position_offset", "embedding_dropout_rate", "layer_norm_epsilon")


def config_from_huggingface(content: Mapping[str, Any]) -> OptConfig:
    """Read config.json's content into OptConfig; raises UserError for any other variant of OPT.

    Initial values are not those of the paper: `init_std` is that of all kernels.
    """
    if not content.get("layer_norm_elementwise_affine", True):
        raise UserError("config.json: layer_norm_elementwise_affine = False is not supported, only True")
    if content.get("layerdrop"):
        raise UserError(f"config.json: layerdrop = {content['layerdrop']!r} is not supported, only 0")
    flags = ("do_layer_norm_before", "_remove_final_layer_norm")
    check_types(content, _SIZES, (int,), required=True)
    check_types(content, ("word_embed_proj_dim",), (int,))
    check_types(content, _NUMBERS, (int, float))
    check_types(content, (*_FLAGS, *flags), (bool,))
    activation = read_activation(content, "activation_function", "relu")
    values = {ours: content[theirs] for theirs, ours in _VALUES.items() if content.get(theirs) is not None}
    width, before = content.get("word_embed_proj_dim"), content.get("do_layer_norm_before", True)
    return OptConfig(
        **{"attention_dropout_rate": 0.0, "initializer_range": 0.02} | values,
        block="pre_norm" if before else "post_norm",
        last_norm=before and not content.get("_remove_final_layer_norm"),
        embedding_size=None if width == values["hidden_size"] else width,
        activation=activation,
        scale_residual_init=False,
    )


def config_to_huggingface(config: OptConfig) -> dict[str, Any]:
    """Write OptConfig as config.json's content, without "architectures".

    Raises:
      UserError: for what transformers' OPT cannot represent.
    """
    check_is(config, OptConfig(), *_FIXED)
    before = config.block == "pre_norm"
    if config.last_norm and not before:
        raise UserError(
            f"OptConfig.block = {config.block!r} with last_norm = {config.last_norm} has no place in transformers' class: a "
            "model like it cannot be written"
        )
    return {
        "model_type": "opt",
        **dict.fromkeys(TOKENS),
        **stated(config, _VALUES),
        "vocab_size": config.require_table_rows,
        "word_embed_proj_dim": config.table_width,
        "activation_function": WRITTEN_ACTIVATIONS[config.activation],
        "do_layer_norm_before": before,
        "_remove_final_layer_norm": before and not config.last_norm,
        "layer_norm_elementwise_affine": True,
        "layerdrop": 0.0,
    }


def entries(config: OptConfig) -> tuple[Entry, ...]:
    """Return the entries of every parameter."""
    body, ours, theirs = "model.decoder.", "decoder/layers/", "model.decoder.layers.{layer}."

    def dense(name: str, tensor: str, layout: Layout = "linear") -> list[Entry]:
        kernel = Entry(f"{ours}{name}/kernel", f"{theirs}{tensor}.weight", layout)
        bias = Entry(f"{ours}{name}/bias", f"{theirs}{tensor}.bias", "vector")
        return [kernel, bias] if config.use_bias else [kernel]

    maps = (
        Entry("decoder/embeddings/projection/kernel", f"{body}project_in.weight", "linear"),
        Entry("decoder/projection/kernel", f"{body}project_out.weight", "linear"),
    )
    untied = Entry("lm_head/kernel", "lm_head.weight", "matrix", vocabulary=True)
    return (
        Entry("classifier/output/kernel", "score.weight", "linear"),
        Entry("embeddings/table", f"{body}embed_tokens.weight", "matrix", vocabulary=True),
        Entry("decoder/embeddings/position/table", f"{body}embed_positions.weight", "matrix"),
        *(maps if config.table_width != config.hidden_size else ()),
        *(entry for name in ("query", "key", "value") for entry in dense(f"attention/{name}", f"self_attn.{name[0]}_proj")),
        *dense("attention/output", "self_attn.out_proj", "linear_from_heads"),
        *norm(f"{ours}attention_norm", f"{theirs}self_attn_layer_norm"),
        *dense("feed_forward/intermediate", "fc1"),
        *dense("feed_forward/output", "fc2"),
        *norm(f"{ours}feed_forward_norm", f"{theirs}final_layer_norm"),
        *(norm("decoder/norm", f"{body}final_layer_norm") if config.last_norm else ()),
        *([] if config.tie_embeddings else [untied]),
    )


OPT = LanguageModelFamily(
    model_type="opt",
    config=OptConfig,
    objective="objectives/causal_lm.gin",
    prefix="model.",
    architectures=language_model_architectures("OPTForCausalLM", classifier="OPTForSequenceClassification"),
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=entries,
    tied=("lm_head.weight", "model.decoder.embed_tokens.weight"),
    buffers=(),
    old_names={},
)
