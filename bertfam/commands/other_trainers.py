"""Flags and commands of other trainers (Hugging Face's scripts, fairseq, t5x, Composer), and what bertfam has in their place."""

from collections.abc import Collection

# Names of a flag elsewhere, and what is written here: the first entry that the command has. An entry that begins with
# --gin. is for commands with a configuration, and one without dashes for all.
_FLAGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "corpus data data_dir data_path dataset_path text_file train_data train_data_file train_file train_files train_path",
        ("--train=FILE", "--input=GLOB"),
    ),
    ("dataset dataset_name mixture_or_task_name mixture", ("--task=NAME of a registered task, or --input=GLOB of files",)),
    (
        "dev_file eval_data_file eval_file valid_file validation_file validation_split",
        ("--validation=FILE", "--validation_input=GLOB of held-out files"),
    ),
    (
        "predict_file test test_data test_file",
        ("--train=FILE, and give files to label to bertfam predict --input=FILE", "--input=GLOB"),
    ),
    ("task_name", ("--input=FILE of the task",)),
    ("sentence sentence1_key text_column text_column_name text_column_names", ("--text=COLUMN",)),
    ("sentence2_key text2 text_b", ("--text_pair=COLUMN",)),
    ("label_column label_column_name labels target", ("--label=COLUMN",)),
    ("do_regression is_regression", ("--regression",)),
    (
        "input text_input",
        (
            "--train=FILE",
            "--cache_dir=DIR of a token cache of the text (bertfam cache --input=GLOB); bertfam predict --label=COLUMN scores a "
            "fine-tuned model",
        ),
    ),
    (
        "checkpoint_dir log_dir logdir out output output_dir output_folder run_dir save_dir save_folder save_path",
        ("--output=DIR", "--model_dir=DIR"),
    ),
    ("model_dir", ("--gin_file=MODEL_DIR/config.gin", "--vocab=MODEL_DIR/vocab")),
    (
        "load_path model model_name model_name_or_path model_path pretrained pretrained_model_name_or_path",
        ("--init_from=DIR", "--model_dir=DIR"),
    ),
    ("cfg conf config config_file config_name config_path", ("--gin_file=FILE",)),
    ("spm_model tokenizer tokenizer_dir tokenizer_name tokenizer_path vocab_dir vocab_file", ("--vocab=DIR",)),
    (
        "base_learning_rate learning_rate lr max_lr peak_lr",
        ("--learning_rate=RATE", "--gin.LinearDecay.peak=RATE, or the peak of another schedule"),
    ),
    (
        "batch_size global_batch_size global_train_batch_size max_sentences per_device_train_batch_size "
        "per_gpu_train_batch_size train_batch_size",
        (
            "--batch_size=N",
            "--gin.BATCH_SIZE=ROWS, which are those of all devices together",
        ),
    ),
    ("per_device_eval_batch_size eval_batch_size", ("--batch_size=N",)),
    (
        "epochs max_epoch max_epochs num_epochs num_train_epochs",
        (
            "--epochs=N",
            "--gin.TRAIN_STEPS=N, a number of updates",
        ),
    ),
    (
        "iterations max_duration max_steps max_update max_updates num_steps num_train_steps steps total_num_update total_steps "
        "train_steps",
        ("--gin.TRAIN_STEPS=N",),
    ),
    (
        "num_warmup_steps warmup warmup_proportion warmup_ratio warmup_steps warmup_updates",
        ("--gin.LinearDecay.warmup_steps=N, a number of updates",),
    ),
    ("wd weight_decay", ("--gin.AdamW.weight_decay=RATE",)),
    ("clip_norm grad_clip gradient_clip_val max_grad_norm", ("--gin.AdamW.clip_norm=NORM",)),
    ("optim optimizer", ("--gin.Run.optimizer=@NAME()",)),
    (
        "block_size context_length max_length max_len max_seq_len max_seq_length seq_len seq_length sequence_length "
        "tokens_per_sample",
        ("--max_new_tokens=N", "--length=N", "--gin.Stage.length=N, the tokens of a row"),
    ),
    ("mask_prob mask_ratio masked_lm_prob masking_rate mlm_prob mlm_probability", ("--gin.BertMasking.rate=SHARE",)),
    ("whole_word_mask whole_word_masking", ("--gin.BertMasking.choice=@WholeWords()",)),
    ("line_by_line", ("--input_format=lines",)),
    ("random_seed seed", ("--gin.SEED=N",)),
    (
        "checkpoint_every checkpoint_period checkpoint_steps save_every save_interval save_interval_updates save_steps",
        ("--gin.CHECKPOINT_EVERY=N",),
    ),
    ("eval_every eval_interval eval_period eval_steps validate_interval", ("--gin.EVAL_EVERY=N",)),
    ("log_every log_interval log_steps logging_steps", ("--gin.Run.log_every=N",)),
    ("keep_checkpoints keep_last_epochs save_total_limit", ("--gin.Run.keep_checkpoints=N",)),
    (
        "grad_accum gradient_accumulation_steps microbatches update_freq",
        ("--gin.Run.microbatches=N, the pieces in which a batch is computed",),
    ),
    (
        "amp bf16 dtype fp16 half mixed_precision precision",
        ("--gin.Execution.dtype='\"bfloat16\"', or nothing: the default is chosen for the devices",),
    ),
    ("alpha_ce distill_temperature kd_temperature temperature", ("--gin.Distillation.temperature=T",)),
    (
        "autoresume auto_resume continue restore_file resume resume_from resume_from_checkpoint",
        ("nothing: the same command resumes from the newest checkpoint in --model_dir",),
    ),
    (
        "force overwrite overwrite_cache overwrite_output_dir",
        ("--overwrite", "nothing: what is there is never overwritten, so name another folder, or remove that one first"),
    ),
    (
        "do_eval do_train do_predict",
        (
            "--train=FILE and --validation=FILE, which train and evaluate; bertfam predict labels texts",
            "nothing: bertfam pretrain trains and evaluates, and bertfam evaluate evaluates",
        ),
    ),
    ("load_best_model_at_end metric_for_best_model", ("--gin.Run.keep_best='\"loss\"', or another score of the held-out text",)),
    ("ckpt checkpoint checkpoint_step", ("--step=N",)),
    ("cpu cuda device gpu gpus no_cuda num_gpus use_cpu", ("JAX_PLATFORMS=cpu, or cuda or tpu, before the command",)),
    ("dataloader_num_workers n_jobs num_proc num_workers preprocessing_num_workers workers", ("--processes=N",)),
    ("beam beam_size num_beams", ("--strategy=beam --beams=N",)),
    ("do_sample sample sampling", ("--strategy=sample",)),
    ("prompt text", ('the text by itself, as "TEXT"',)),
    ("vocab_size", ("--size=N",)),
    ("algorithm model_type tokenizer_type type", ("--kind=NAME",)),
    ("max_examples max_samples num_examples num_samples", ("--limit=N", "--examples=N")),
)
_BY_NAME = {name: entries for names, entries in _FLAGS for name in names.split()}
_COMMANDS = {
    "binarize": "bertfam cache tokenises text",
    "convert": "bertfam export writes a Hugging Face folder, and bertfam import reads one",
    "download": "nothing is downloaded; bertfam import reads a Hugging Face folder",
    "classify": "bertfam predict labels texts, and bertfam finetune trains a classifier",
    "fine-tune": "bertfam finetune trains a classifier or a tagger",
    "fine_tune": "bertfam finetune trains a classifier or a tagger",
    "help": "bertfam COMMAND --help shows the flags of a command",
    "list": "bertfam configs lists the gin files, bertfam explain the classes, bertfam --help the commands",
    "preprocess": "bertfam cache tokenises text",
    "resume": "bertfam pretrain --model_dir=DIR resumes a run",
    "sample": "bertfam generate --strategy=sample samples texts",
    "test": "bertfam evaluate measures a trained model, and bertfam predict --label=COLUMN scores a fine-tuned one",
    "tokenize": "bertfam encode shows the tokens of a text, and bertfam cache tokenises a corpus",
    "tokenizer": "bertfam vocab trains a vocabulary",
    "validate": "bertfam check validates a configuration, and bertfam evaluate measures a model",
}


def flag_here(flag: str, known: Collection[str], *, takes_gin: bool) -> str:
    """Return the end of the message about an unknown flag that other trainers have; "" for other flags.

    Args:
      flag: the flag, without a value.
      known: the flags of the command.
      takes_gin: True if the command has --gin.NAME=value.
    """
    own = flag.lstrip("-").replace("-", "_").lower()
    if f"--{own}" in known:
        return f"; did you mean --{own}?"
    for entry in _BY_NAME.get(own, ()):
        name = entry.partition("=")[0].split()[0]
        if name in known or not name.startswith("--") or (takes_gin and name.startswith("--gin.")):
            return f"; write {entry}"
    return ""


def command_here(name: str) -> str:
    """Return the end of the message about an unknown command that other trainers have, or that has flags in it; "" for others."""
    if len(name.split()) > 1:
        return f": this is one word; write the command without quotes around it: bertfam {' '.join(name.split())}"
    return f"; {_COMMANDS[name.lower()]}" if name.lower() in _COMMANDS else ""
