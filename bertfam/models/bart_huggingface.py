"""BART in Hugging Face's files: config.json and names of tensors."""

from collections.abc import Mapping
from typing import Any

from bertfam.errors import UserError
from bertfam.models.bart import BartConfig
from bertfam.models.bert_huggingface import ACTIVATIONS, WRITTEN_ACTIVATIONS, dense, norm
from bertfam.models.mapping import Entry, GeneratorFamily, check_types, generator_architectures, stated

# their name -> ours; these have no default that fits every model
_SIZES = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_length",
    "d_model": "hidden_size",
    "encoder_layers": "num_encoder_layers",
    "encoder_attention_heads": "num_encoder_heads",
    "encoder_ffn_dim": "encoder_feed_forward_size",
    "decoder_layers": "num_layers",
    "decoder_attention_heads": "num_heads",
    "decoder_ffn_dim": "feed_forward_size",
}
_NUMBERS = {
    "dropout": "dropout_rate",
    "attention_dropout": "attention_dropout_rate",
    "activation_dropout": "feed_forward_dropout_rate",
    "init_std": "initializer_range",
}
_FLAGS = {"scale_embedding": "scale_embeddings", "tie_word_embeddings": "tie_embeddings"}
_VALUES = _SIZES | _NUMBERS | _FLAGS
# ours, where None is the decoder's -> the decoder's
_ENCODER = {
    "num_encoder_layers": "num_layers",
    "num_encoder_heads": "num_heads",
    "encoder_feed_forward_size": "feed_forward_size",
}
# Where no vocabulary says them; their class would put those of its own, and end every text that is cut off by the last.
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id")
# What changes what is computed, as mBART's files of old have it under the same model_type, and the values that are BART.
_ONLY = {
    "is_encoder_decoder": (True, None),
    "normalize_before": (False, None),
    "add_final_layer_norm": (False, None),
    "normalize_embedding": (True, None),
    "static_position_embeddings": (False, None),
    "add_bias_logits": (False, None),
    "extra_pos_embeddings": (2, None),
    "encoder_layerdrop": (0, None),
    "decoder_layerdrop": (0, None),
}


def config_from_huggingface(content: Mapping[str, Any]) -> BartConfig:
    """config.json's content -> BartConfig; raises UserError for a model that is not this BART."""
    for name, allowed in _ONLY.items():
        if content.get(name) not in allowed:
            raise UserError(f"config.json: {name} = {content[name]!r} is not supported, only {allowed[0]!r}")
    check_types(content, _SIZES, (int,), required=True)
    check_types(content, _NUMBERS, (int, float))
    check_types(content, _FLAGS, (bool,))
    activation = content.get("activation_function", "gelu")
    if activation not in list(ACTIVATIONS):
        raise UserError(f"config.json: activation_function = {activation!r} is not supported, only {', '.join(ACTIVATIONS)}")
    values = {ours: content[theirs] for theirs, ours in _VALUES.items() if content.get(theirs) is not None}
    for name, decoders in _ENCODER.items():
        if values[name] == values[decoders]:
            del values[name]
    # Rates that are not stated are 0 in their class.
    rates = {"attention_dropout_rate": 0.0, "feed_forward_dropout_rate": 0.0}
    return BartConfig(**(rates | values), activation=ACTIVATIONS[activation])


def config_to_huggingface(config: BartConfig) -> dict[str, Any]:
    """BartConfig -> config.json's content, without "architectures"."""
    return {
        "model_type": "bart",
        **dict.fromkeys(_TOKENS),
        **stated(config, _VALUES),
        "vocab_size": config.known_table_rows,
        "encoder_layers": config.encoder_layers,
        "encoder_attention_heads": config.encoder_heads,
        "encoder_ffn_dim": config.encoder_size,
        "activation_function": WRITTEN_ACTIVATIONS[config.activation],
        "is_encoder_decoder": True,
        # Without it transformers 5 gives each network a word table of its own; a head of its own is seen in the tensors.
        "tie_word_embeddings": True,
    }


def entries(config: BartConfig) -> tuple[Entry, ...]:
    """Every parameter."""
    untied = Entry("lm_head/kernel", "lm_head.weight", "matrix", vocabulary=True)
    return (
        Entry("embeddings/table", "model.shared.weight", "matrix", vocabulary=True),
        *_stack("encoder", config.encoder_layers, {"attention": "self_attn"}),
        *_stack("decoder", config.num_layers, {"attention": "self_attn", "cross_attention": "encoder_attn"}),
        Entry("lm_head/bias", "final_logits_bias", "row", vocabulary=True, optional=True),
        *([] if config.tie_embeddings else [untied]),
    )


def _stack(stack: str, layers: int, attentions: Mapping[str, str]) -> tuple[Entry, ...]:
    """Every parameter of the encoder or the decoder."""
    ours, theirs = f"{stack}/layers/", f"model.{stack}.layers.{{layer}}."
    found: list[Entry] = []
    for name, their_name in attentions.items():
        for which in ("query", "key", "value"):
            found += dense(f"{ours}{name}/{which}", f"{theirs}{their_name}.{which[0]}_proj")
        found += dense(f"{ours}{name}/output", f"{theirs}{their_name}.out_proj", "linear_from_heads")
        found += norm(f"{ours}{name}_norm", f"{theirs}{their_name}_layer_norm")
    found += dense(f"{ours}feed_forward/intermediate", f"{theirs}fc1")
    found += dense(f"{ours}feed_forward/output", f"{theirs}fc2")
    found += norm(f"{ours}feed_forward_norm", f"{theirs}final_layer_norm")
    return (
        Entry(f"{stack}/embeddings/position/table", f"model.{stack}.embed_positions.weight", "matrix"),
        *norm(f"{stack}/embeddings/norm", f"model.{stack}.layernorm_embedding"),
        *(Entry(entry.ours, entry.theirs, entry.layout, layers=layers) for entry in found),
    )


BART = GeneratorFamily(
    model_type="bart",
    config=BartConfig,
    objective="objectives/bart.gin",
    prefix="model.",
    architectures=generator_architectures("BartForConditionalGeneration", has_encoder=True),
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=entries,
    tied=("lm_head.weight", "model.shared.weight"),
    buffers=(),
    old_names=dict.fromkeys(("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), "shared.weight"),
)
