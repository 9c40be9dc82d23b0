"""--rag and the flags that go with it: fine-tuning of an encoder-decoder on questions, with passages that are retrieved."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bertfam.commands.target_flags import network_of
from bertfam.errors import UserError

if TYPE_CHECKING:
    from bertfam.config import Config, Override
    from bertfam.data.corpora.labelled.open_questions import AnswerFiles
    from bertfam.embedding.towers import Towers

NAMES = ("index", "passages")
# Flags that do not go with --rag.
WITHOUT = (
    *("text", "text_pair", "label", "choices", "no_header", "record_encoding", "skip_empty"),
    *("stride", "freeze", "probe", "lm_weight", "lora", "lora_alpha", "quantize"),
)
_SCOPE = "question"
_COSINE_TEMPERATURE = 0.05  # where the index's model does not say its own, as of `--retrieval --normalize`


def add(group: argparse._ArgumentGroup) -> None:
    """Declare the flags."""
    from bertfam.commands import flags

    group.add_argument(
        "--rag",
        choices=("sequence", "token"),
        help="an encoder-decoder learns to answer questions from passages of --index that the index's question encoder, which "
        'learns too, finds (Lewis et al. 2020): JSON lines of {"question", "answer"}, or JSON files of SQuAD\'s format (.json)',
    )
    group.add_argument("--index", type=flags.path, metavar="DIR", help="of --rag: folder of passages that bertfam index wrote")
    group.add_argument("--passages", type=int, metavar="K", help="of --rag: passages of each question (default: 5)")


def check(args: argparse.Namespace) -> None:
    """Raise UserError for flags of --rag without it, or --rag without an index."""
    for name in NAMES:
        if getattr(args, name) is not None and not args.rag:
            raise UserError(f"--{name} describes --rag: give --rag=sequence or --rag=token too, or leave it out")
    if args.rag and not args.index:
        raise UserError(f"--rag={args.rag} reads passages: name the folder that `bertfam index` wrote by --index=DIR")


def open_towers(args: argparse.Namespace) -> Towers:
    """Open the model of the index, whose question encoder the run starts from; raise UserError if it cannot be trained here."""
    from bertfam.embedding.towers import reopen_towers
    from bertfam.retrieval.index import NAME, Index

    index = Index.open(args.index)
    index.check_complete()
    towers = reopen_towers(index.source.get("model") or {}, index.folder / NAME)
    settings = towers.query.settings
    if settings.pooling == "max":
        raise UserError(f"--index={args.index}: its vectors are maxima, and a question encoder learns means or [CLS]")
    if settings.lowercase:
        raise UserError(f"--index={args.index}: its model lowers the case of texts before it encodes them; use another one")
    return towers


def corpus(args: argparse.Namespace, config: Config, towers: Towers) -> AnswerFiles:
    """Return the files of --train and --validation."""
    from bertfam.data.corpora.labelled.open_questions import AnswerFiles

    length, prompt = _query_length(config, towers), towers.query.prompt
    return AnswerFiles(tuple(args.train), tuple(args.validation), _vocabulary(towers), length, prompt)


def row_bindings(args: argparse.Namespace, config: Config, towers: Towers) -> list[Override]:
    """Return the bindings of the objective, the question encoder and the rows; lengths are as much as the models read."""
    from bertfam.config import Override
    from bertfam.config.values import bindings_of
    from bertfam.objectives.retrieval.rag import digest
    from bertfam.retrieval.index import Index

    model, question, embedder = network_of(config), towers.query.config, towers.query
    length = args.length or config.value("Stage.length")
    if model.max_length is not None and not args.length:
        length = min(length, model.max_length)
    lines = [
        *(f"Rag.marginal = {args.rag!r}", f"Rag.index = {_absolute(args.index)!r}", f"START = {model.start!r}"),
        f"Rag.index_digest = {digest(Index.open(args.index))!r}",
        *(f"QUESTION_VOCABULARY = {_vocabulary(towers)!r}", f"QUERY_LENGTH = {_query_length(config, towers)}"),
        *(f"DualEncoder.pooling = {embedder.settings.pooling!r}", f"DualEncoder.normalize = {embedder.settings.normalize}"),
        *(
            f"DualEncoder.model = @{_SCOPE}/{type(question).__name__}()",
            f"Rag.passage_length = {length}",
            f"Stage.length = {length}",
        ),
    ]
    if embedder.width != question.hidden_size or "projection" in embedder.params:
        lines.append(f"DualEncoder.projection = {embedder.width}")
    if not config.binds("DualEncoder.temperature"):
        lines.append(f"DualEncoder.temperature = {_temperature(towers)}")
    if args.passages is not None:
        lines.append(f"Rag.passages = {args.passages}")
    if args.target_length is not None:
        lines.append(f"TARGET_LENGTH = {args.target_length}")
    return [Override(line, f"--rag={args.rag}") for line in lines] + bindings_of(question, f"--index={args.index}", scope=_SCOPE)


def _query_length(config: Config, towers: Towers) -> int:
    """Return the positions of a question, at most those that its encoder reads."""
    return min(int(config.value("DualEncoder.query_length")), towers.query.length)


def _vocabulary(towers: Towers) -> str:
    """Return the folder of the vocabulary of the question encoder."""
    from bertfam.interop.folders import huggingface_towers
    from bertfam.objectives.retrieval.dual_encoder import QUERY
    from bertfam.training.trained_networks import vocabulary_folder

    folder = towers.source["folder"]
    return _absolute(str(vocabulary_folder(huggingface_towers(folder).get(QUERY, folder))))


def _temperature(towers: Towers) -> float:
    """Return t of the scores of the model of an index: that of its run, or else one for cosines or inner products."""
    from bertfam.config.state import preserve_gin
    from bertfam.objectives.retrieval.dual_encoder import DualEncoder
    from bertfam.storage.paths import to_path
    from bertfam.training.model_dir import read_run

    folder = towers.source["folder"]
    if (to_path(folder) / "config.gin").is_file():
        with preserve_gin():
            objective = read_run(folder).objective
        if isinstance(objective, DualEncoder):
            return objective.temperature
    return _COSINE_TEMPERATURE if towers.query.settings.normalize else 1.0


def _absolute(folder: str) -> str:
    """Return a path that holds in any working directory."""
    from bertfam.storage.paths import to_path

    return str(to_path(folder).absolute())
