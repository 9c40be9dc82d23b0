"""Names that other libraries have for parameters and macros, and what bertfam has in their place."""

from collections.abc import Collection

# Parameter here -> its names elsewhere.
_PARAMETERS = {
    "activation": "hidden_act hidden_activation activation_function act_fn",
    "attention_dropout_rate": "attention_dropout attention_probs_dropout_prob attn_pdrop",
    "b1": "adam_beta1 beta1 beta_1 betas",
    "b2": "adam_beta2 beta2 beta_2 betas",
    "batch_size": "train_batch_size per_device_train_batch_size",
    "clip_norm": "grad_clip max_grad_norm",
    "dropout_rate": "dropout hidden_dropout_prob resid_pdrop",
    "epsilon": "adam_epsilon eps",
    "feed_forward_size": "d_ff ffn_dim intermediate_size mlp_dim n_inner",
    "hidden_size": "d_model embed_dim hidden_dim n_embd",
    "layer_norm_epsilon": "layer_norm_eps norm_eps",
    "length": "max_seq_len max_seq_length seq_len seq_length sequence_length",
    "max_length": "max_position_embeddings n_positions",
    "microbatches": "grad_accum gradient_accumulation_steps",
    "num_heads": "attention_heads n_head n_heads num_attention_heads",
    "num_layers": "depth n_layer n_layers num_hidden_layers",
    "peak": "learning_rate lr max_lr peak_lr",
    "rate": "mask_prob masking_rate mlm_prob mlm_probability",
    "warmup_steps": "num_warmup_steps warmup warmup_updates",
}
# Macros of t5x, and of habit, that are flags or other macros here.
_MACROS = {
    "CACHE_DIR": "the token cache is a flag, --cache_dir=DIR",
    "EPOCHS": "training is counted in updates, by TRAIN_STEPS",
    "EVAL_PERIOD": "it is EVAL_EVERY here",
    "INITIAL_CHECKPOINT_PATH": "the model to start from is a flag, --init_from=DIR",
    "MIXTURE_OR_TASK_NAME": "the task is a flag, --task=NAME",
    "MODEL_DIR": "the folder of the run is a flag, --model_dir=DIR",
    "NUM_EPOCHS": "training is counted in updates, by TRAIN_STEPS",
    "RANDOM_SEED": "it is SEED here",
    "TASK_FEATURE_LENGTHS": "the length of a row is Stage.length",
    "VOCAB": "the vocabulary is a flag, --vocab=DIR",
}


def parameters_here(name: str) -> list[str]:
    """Return the parameters that other libraries call by this name."""
    return [parameter for parameter, names in _PARAMETERS.items() if name.lower() in names.split()]


def parameter_hint(name: str, known: Collection[str]) -> str:
    """Return the end of the message about an unknown parameter that other libraries have; "" for other names."""
    meant = parameters_here(name)
    if own := [parameter for parameter in meant if parameter in known]:
        return f"; it is {' and '.join(own)} here"
    if "peak" in meant and "schedule" in known:
        return "; the learning rate is the peak of its schedule, such as LinearDecay.peak"
    return ""


def macro_hint(name: str) -> str:
    """Return the end of the message about a macro that other libraries have; "" for other names."""
    return f"; {_MACROS[name.upper()]}" if name.upper() in _MACROS else ""
