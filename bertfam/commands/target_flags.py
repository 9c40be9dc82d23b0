"""--target and the flags that go with it: fine-tuning on texts with target texts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from bertfam.errors import UserError

if TYPE_CHECKING:
    from bertfam.config import Config, Override
    from bertfam.data.corpora.labelled.target_files import TargetFiles
    from bertfam.data.seqio_tasks.corpus import SeqioTask
    from bertfam.data.seqio_tasks.labelled_tasks import TargetTask
    from bertfam.models.language_model import LanguageModelConfig
    from bertfam.models.network import Kind
    from bertfam.training.run import Run

NAMES = ("target", "target_length")


def add(group: argparse._ArgumentGroup) -> None:
    """Declare the flags."""
    group.add_argument(
        "--target",
        metavar="COLUMN",
        help="column of texts that an encoder-decoder or a causal LM learns to generate: summaries, translations, completions, "
        "names of classes",
    )
    group.add_argument(
        "--target_length",
        type=int,
        metavar="N",
        help="largest number of tokens of a target, its end included; in a causal LM, of the tokens of a row (default: 128; of "
        "--rag 32)",
    )


def check(args: argparse.Namespace) -> None:
    """Raise UserError for flags of targets without --target, or a length that is none."""
    for name in NAMES[1:]:
        if getattr(args, name) is not None and not (args.target or args.rag):
            raise UserError(f"--{name} describes targets: give --target=COLUMN too, or leave it out")
    if args.target_length is not None and args.target_length < 2:
        raise UserError(f"--target_length={args.target_length} must be at least 2: one token and the end of the text")


def model_of(args: argparse.Namespace, config: Config) -> LanguageModelConfig:
    """Return the model of a configuration; raise UserError if it generates no text."""
    model = network_of(config)
    if model.kind not in _BINDINGS:
        raise UserError(
            f"--target={args.target} is a text to generate, and {args.init_from} is an encoder, which generates none: predict "
            f"labels (--label={args.target}), or start from an encoder-decoder or a causal LM"
        )
    generator: LanguageModelConfig = model
    return generator


def network_of(config: Config) -> Any:
    """Return the network's config in a configuration; raise UserError if it has none."""
    from bertfam.config.objects import described_object

    described = described_object(config, ("Run", "objective", "model"))
    if described is None:
        raise UserError("Run.objective has no model to fine-tune: leave the gin file out, or bind one in it")
    cls, values = described
    return cls(**values)


def seqio_task(args: argparse.Namespace) -> SeqioTask:
    """Return the task of --task, of which a tenth is held out unless it has a validation split."""
    from bertfam.data.seqio_tasks.corpus import SeqioTask

    return SeqioTask(args.seqio_task, args.task_modules, validation_fraction=0.1, pairs=True)


def corpus(args: argparse.Namespace, model: LanguageModelConfig) -> TargetFiles | TargetTask:
    """Return the files of --train and --validation, or the records of --task."""
    from bertfam.data.corpora.labelled.target_files import TargetFiles
    from bertfam.data.seqio_tasks.labelled_tasks import TargetTask

    joined = model.kind == "decoder"
    if args.seqio_task:
        text = args.text or TargetTask.text
        return TargetTask(seqio_task(args), text, args.target, joined=joined, skip_empty=args.skip_empty)
    return TargetFiles(
        tuple(args.train),
        tuple(args.validation),
        args.record_format,
        args.text or TargetFiles.text,
        args.target,
        joined=joined,
        header=not args.no_header,
        encoding=args.record_encoding or TargetFiles.encoding,
        skip_empty=args.skip_empty,
    )


def row_bindings(args: argparse.Namespace, config: Config, model: LanguageModelConfig) -> list[Override]:
    """Return the bindings of the rows; their lengths are the defaults, or as much as the model reads."""
    from bertfam.config import Override

    length, longest = args.length or config.value("Stage.length"), model.max_length
    lines = []
    if longest is not None and not args.length and length > longest:
        length = longest
        lines.append(f"Stage.length = {length}")
    lines += _BINDINGS[model.kind](model, length, args.target_length)
    return [Override(line, f"--target={args.target}") for line in lines]


def text_bindings(args: argparse.Namespace, config: Config, saved: Run | None) -> list[Override]:
    """Return the bindings of labelled texts for a language model; `saved` is the run in MODEL_DIR that resumes, if any.

    Its rows are those of `row_options`; a causal LM may have the loss of its published fine-tuning, or that of the run.
    """
    from bertfam.config import Override
    from bertfam.config.objects import described_object
    from bertfam.finetuning.published import row_options

    described = described_object(config, ("Run", "objective", "model"))
    if described is None:
        return []
    model = described[0](**described[1])
    rows, labels = row_options(model)
    layout = "LabelledTexts" if args.stride is None else "TextWindows"
    lines = [f"{layout}.{name} = {value!r}" for name, value in rows.items()]
    lines += [f"Labels.{name} = {value!r}" for name, value in labels.items()]
    if model.kind == "decoder":
        published = getattr(saved.objective, "lm", 0.0) if saved else getattr(model, "fine_tuning_lm", 0.0)
        if published and args.lm_weight is None and args.freeze != "encoder" and not config.binds("FineTuning.lm"):
            lines.append(f"FineTuning.lm = {published}")
    return [Override(line, f"--init_from={args.init_from}") for line in lines]


_TARGET_LENGTH = 128


def _pair_bindings(model: LanguageModelConfig, length: int, targets: int | None) -> list[str]:
    """Return the bindings of rows for an encoder and a decoder."""
    if targets is None:
        targets = min(_TARGET_LENGTH, model.max_length or _TARGET_LENGTH)
    return ["TextData.pairs = @TextPairs()", "TextData.corruption = @TextToText()", *_fields("TextToText", model, targets)]


def _completion_bindings(model: LanguageModelConfig, length: int, targets: int | None) -> list[str]:
    """Return the bindings of rows for a decoder, of which at most half are the target unless a flag says so."""
    if targets is None:
        targets = max(2, min(_TARGET_LENGTH, length // 2))
    return ["TextData.pairs = @Completions()", *_fields("Completions", model, targets)]


def _fields(name: str, model: LanguageModelConfig, targets: int) -> list[str]:
    return [f"{name}.start = {model.start!r}", f"{name}.target_tokens = {targets}"]


_BINDINGS: Mapping[Kind, Callable[[LanguageModelConfig, int, int | None], list[str]]] = {
    "encoder_decoder": _pair_bindings,
    "decoder": _completion_bindings,
}
