"""--retrieval and the flags that go with it: fine-tuning of a dual encoder on questions with passages."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bertfam.commands.target_flags import network_of
from bertfam.errors import UserError

if TYPE_CHECKING:
    from bertfam.config import Config, Override
    from bertfam.data.corpora.labelled.passage_files import PassageFiles
    from bertfam.finetuning.survey import Survey

NAMES = ("hard_negatives", "pooling", "normalize")
# Flags that do not go with --retrieval.
WITHOUT = (
    *("text", "text_pair", "label", "choices", "no_header", "record_encoding", "skip_empty"),
    *("stride", "freeze", "probe", "lm_weight", "lora", "lora_alpha", "quantize"),
)
_PASSAGE = 256  # tokens
_TEMPERATURE = 0.05  # of cosines, as in sentence-transformers' MultipleNegativesRankingLoss (6.2)


def add(group: argparse._ArgumentGroup) -> None:
    """Declare the flags."""
    group.add_argument(
        "--retrieval",
        action="store_true",
        help="a dual encoder learns to find the passages that answer questions, which `bertfam index` then embeds: JSON lines of "
        '{"question", "positive", "hard_negatives"}, or JSON files of SQuAD\'s format (.json); hard negatives that a question '
        "lacks are those of BM25",
    )
    group.add_argument(
        "--hard_negatives", type=int, metavar="N", help="passages of each question that do not answer it (default: 1)"
    )
    group.add_argument(
        "--pooling", choices=("cls", "mean"), help="the vector of a text: of [CLS], or the mean of its tokens (default: cls)"
    )
    group.add_argument(
        "--normalize",
        action="store_true",
        help=f"scale vectors to length 1, and divide their cosines by {_TEMPERATURE} (--gin.DualEncoder.temperature)",
    )


def check(args: argparse.Namespace) -> None:
    """Raise UserError for flags of retrieval without --retrieval."""
    for name in NAMES:
        if getattr(args, name) not in (None, False) and not args.retrieval:
            raise UserError(f"--{name} describes retrieval: give --retrieval too, or leave it out")


def corpus(args: argparse.Namespace) -> PassageFiles:
    """Return the files of --train and --validation."""
    from bertfam.data.corpora.labelled.passage_files import PassageFiles

    negatives = PassageFiles.hard_negatives if args.hard_negatives is None else args.hard_negatives
    return PassageFiles(tuple(args.train), tuple(args.validation), negatives)


def check_negatives(args: argparse.Namespace, config: Config, contents: Survey) -> list[str]:
    """Return a warning if questions have no passages of other questions as negatives.

    Raises:
      UserError: they have no hard negatives either.
    """
    batch_size = args.batch_size or config.value("Stage.batch_size")
    if batch_size > 1 and contents.questions > 1:
        return []
    fewer, fix = ("--batch_size=1", "raise it") if batch_size == 1 else ("there is one question to train on", "add others")
    if not contents.has_hard_negatives:
        raise UserError(f"{fewer}, without hard negatives, so that a question has no wrong passages and the loss is 0: {fix}")
    return [f"{fewer}, so that a question has its hard negatives alone as wrong passages, and none of other questions: {fix}"]


def row_bindings(args: argparse.Namespace, config: Config) -> list[Override]:
    """Return the bindings of the rows and of the vectors; the lengths are the defaults, or as much as the model reads.

    Raises:
      UserError: the model is no encoder.
    """
    from bertfam.config import Override
    from bertfam.models.network import DESCRIPTIONS

    model = network_of(config)
    if model.kind != "encoder":
        raise UserError(
            f"--retrieval embeds texts by an encoder, and {args.init_from} is {DESCRIPTIONS[model.kind]}: name the folder of an "
            "encoder"
        )
    longest = model.max_length or _PASSAGE
    if args.length and model.max_length and args.length > model.max_length:
        raise UserError(
            f"--length={args.length} are more tokens of a passage than {args.init_from or args.model_dir} reads: give at most "
            f"{model.max_length} ({type(model).__name__}.max_length)"
        )
    query = min(config.value("DualEncoder.query_length"), longest)
    passage, passages = args.length or min(_PASSAGE, longest), 1 + corpus(args).hard_negatives
    lines = [f"PASSAGES = {passages}", f"QUERY_LENGTH = {query}", f"Stage.length = {query + passages * passage}"]
    if args.pooling:
        lines.append(f"DualEncoder.pooling = {args.pooling!r}")
    if args.normalize:
        lines.append("DualEncoder.normalize = True")
        lines += [f"DualEncoder.temperature = {_TEMPERATURE}"] * (not config.binds("DualEncoder.temperature"))
    return [Override(line, "--retrieval") for line in lines]
