"""`bertfam finetune`: a pretrained model on your own texts with labels or with target texts."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertfam.commands import benchmark_flags, flags, init_flags, pretrain, rag_flags, retrieval_flags, target_flags
from bertfam.errors import UserError, warn

if TYPE_CHECKING:
    from pathlib import Path

    from bertfam.config import Config, Defaults, Override
    from bertfam.data.corpora.corpus import Corpus
    from bertfam.data.corpora.labelled.labelled_corpus import LabelKind, LabelledCorpus
    from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
    from bertfam.data.corpora.labelled.passage_files import PassageFiles
    from bertfam.data.corpora.labelled.question_files import QuestionFiles
    from bertfam.data.corpora.labelled.tagged_files import TaggedFiles
    from bertfam.finetuning.benchmarks.task import TaskFiles
    from bertfam.finetuning.survey import Survey
    from bertfam.session import OpenTeacher
    from bertfam.training.run import Run

SUMMARY = "fine-tune a model on texts with labels or with target texts"
EXAMPLE = """\
  bertfam finetune --init_from=model --train=train.tsv --validation=dev.tsv --text=sentence --label=label --model_dir=classifier
  bertfam predict --model_dir=classifier --input=new.tsv --output=predictions.tsv
  bertfam finetune --init_from=model --task_name=glue/cola --data_dir=GLUE --model_dir=cola
  bertfam finetune --init_from=model --retrieval --train=train-v1.1.json --pooling=mean --model_dir=dpr
Files are tsv, csv, jsonl or parquet, with a column for each flag: --text=question --text_pair=answer --label=correct. Without a
header line columns are numbered: --no_header --text=4 --label=2. The classes are those of the training files. A run evaluates and
saves after each epoch, and keeps the checkpoint with the lowest held-out loss besides the newest. The same command again resumes,
and so does --model_dir=DIR alone. `bertfam export` writes a folder that transformers' pipeline("text-classification") loads.
An encoder-decoder (T5, BART) or a causal LM (GPT-2, OPT) learns to generate the texts of --target=COLUMN instead of labels.
All other settings are bound by --gin.NAME=value: --gin.AdamW.layer_decay=0.8 --gin.SEED=1."""

_TEXTS, _TAGGING, _QUESTIONS, _TARGETS, _CHOICES = (
    *(f"objectives/{name}.gin" for name in ("fine_tuning", "tagging", "answers")),
    "tasks/targets.gin",
    "objectives/choices.gin",
)
_PASSAGES, _RAG = "objectives/dpr.gin", "objectives/rag.gin"
_LORA = "objectives/lora.gin"
_WARMUP = 0.1  # share of the updates


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    group = parser.add_argument_group("labelled texts")
    for name, what in (("train", "labelled files to train on"), ("validation", "held-out files (default: a tenth of --train)")):
        group.add_argument(f"--{name}", type=flags.files, action="append", default=[], metavar="GLOB", help=f"{what}; repeatable")
    group.add_argument(
        "--task",
        dest="seqio_task",
        metavar="NAME",
        help="registered seqio task, in place of --train: --text (default: inputs), --text_pair, --label (default: targets) and "
        "--target name its features, and --module_import=MODULE the module that registers it; a child process imports seqio",
    )
    benchmark_flags.add(group, "in place of --train, its files, columns and labels are those of its publication")
    group.add_argument(
        "--text", metavar="COLUMN", help="column of the text (default: text); several: --text='{title}: {body}' joins them"
    )
    group.add_argument("--text_pair", metavar="COLUMN", help="column of the second text of each pair")
    group.add_argument("--label", metavar="COLUMN", help="column of the label (default: label)")
    group.add_argument("--regression", action="store_true", help="labels are numbers to predict, not classes")
    group.add_argument(
        "--multi_label", action="store_true", help="a text has any number of classes, separated by commas or in a JSON list"
    )
    group.add_argument(
        "--tagging",
        action="store_true",
        help="each word has a label, such as a named entity: files of one word per line, with blank lines between sentences "
        "(--text=1 --label=2), or jsonl or parquet with lists (--text=tokens --label=tags)",
    )
    group.add_argument(
        "--questions", action="store_true", help="questions whose answers are spans of a text: JSON files of SQuAD's format"
    )
    retrieval_flags.add(group)
    rag_flags.add(group)
    target_flags.add(group)
    group.add_argument(
        "--choices",
        type=lambda words: tuple(words.split(",")),
        metavar="COLUMN,COLUMN,...",
        help="one of several choices is right: their columns, or the one field with a list of them; --label has its number or "
        "letter, and --text_pair, such as the question, stands before each choice",
    )
    add_records(group)
    group.add_argument(
        "--skip_empty", action="store_true", help="leave out records with an empty text, which are refused otherwise"
    )
    _add_training(parser.add_argument_group("training"))
    flags.add_config(parser)
    flags.add_model_dir(parser)
    init_flags.add(parser)
    parser.add_argument(
        "--profile_steps", metavar="FIRST-LAST", help="record a profile of these updates, as `bertfam pretrain` does"
    )
    flags.add_processes(parser)


def _add_training(group: argparse._ArgumentGroup) -> None:
    """Declare the flags of training."""
    group.add_argument("--epochs", type=float, metavar="N", help="times that each text is used (default: 3)")
    group.add_argument(
        "--learning_rate",
        type=_rates,
        metavar="RATE",
        help="highest learning rate (default: 2e-5; for targets 5e-5, for retrieval 1e-5, of --rag 3e-5); several, as "
        "1e-5,2e-5, train a run each, in MODEL_DIR/rate_RATE, and print their scores, the best first",
    )
    group.add_argument(
        "--batch_size", type=int, metavar="N", help="texts of an update (default: 32; questions of --retrieval: 128, of --rag 16)"
    )
    group.add_argument(
        "--length",
        type=int,
        metavar="N",
        help="tokens of a row, beyond which texts are cut off (default: 128; for targets 512); of --retrieval those of a passage "
        "(default: 256), and --gin.QUERY_LENGTH=N those of a question (default: 64); of --rag those of a passage and a question "
        "(default: 300)",
    )
    group.add_argument(
        "--stride",
        type=int,
        metavar="N",
        help="divide longer texts into windows that begin every N tokens, each a row; predictions average a text's windows "
        "(default: of questions 128; other texts are cut off)",
    )
    group.add_argument(
        "--freeze",
        type=_freeze,
        nargs="?",
        const="encoder",
        metavar="N",
        help="train the head alone, on an encoder that does not change; or with N not its embeddings and N lowest layers",
    )
    group.add_argument(
        "--probe",
        type=_probe,
        nargs="?",
        const=-1,
        metavar="LAYER",
        help="predict by a linear layer on the hidden states of a layer (0: embeddings; default: the last), or on a learned mix "
        "of all (--probe=mix), in the place of the family's head",
    )
    group.add_argument(
        "--lm_weight",
        type=float,
        metavar="WEIGHT",
        help="of causal LMs: weight of the loss of predicting the text's tokens, beside that of the label (default: 0; of GPT "
        "0.5, as published)",
    )
    group.add_argument(
        "--lora",
        type=int,
        metavar="RANK",
        help="train low-rank adapters of the network's kernels, and the head, instead of the network (try 8; default rate: 5e-4)",
    )
    group.add_argument("--lora_alpha", type=float, metavar="ALPHA", help="the adapters have the scale ALPHA / RANK (default: 8)")
    group.add_argument(
        "--quantize",
        action="store_true",
        help="round kernels and their inputs to int8 in every product, so that `bertfam quantize` changes little afterwards",
    )
    group.add_argument(
        "--patience",
        type=int,
        metavar="N",
        help="end the run after N evaluations in a row without a better held-out loss (default: train all epochs)",
    )
    group.add_argument(
        "--seeds",
        type=parse_seeds,
        metavar="N,N,...",
        help="train once with each seed, one after another, in MODEL_DIR/seed_N, and print mean, median and spread of the scores",
    )


def add_records(group: argparse._ArgumentGroup) -> None:
    """Declare the flags about the format of files with columns."""
    group.add_argument(
        "--format",
        choices=("tsv", "csv", "jsonl", "parquet", "conll", "conllu"),
        dest="record_format",
        help="format of all files (default: as the extension of each name says; of tagged words conll)",
    )
    group.add_argument("--no_header", action="store_true", help="the first line of tsv or csv files is a record too")
    group.add_argument(
        "--encoding", dest="record_encoding", metavar="NAME", help="encoding of the files, such as latin-1 (default: utf-8)"
    )


def text_files(args: argparse.Namespace, globs: Sequence[str]) -> LabelledFiles:
    """Return files of texts alone, as --text and the flags of `add_records` read them."""
    from bertfam.data.corpora.labelled.labelled_files import LabelledFiles

    read = {"input_format": args.record_format, "encoding": args.record_encoding or "utf-8", "header": not args.no_header}
    return LabelledFiles(tuple(globs), text=args.text, label=None, validation_fraction=0.0, **read)


# Kind of labelled text -> its name in messages, its formats, and the flags that it does not have.
_KINDS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "texts": ("labelled texts", ("tsv", "csv", "jsonl", "parquet"), ()),
    "words": ("tagged words", ("conll", "conllu", "jsonl", "parquet"), ("text_pair", "choices", "no_header", "skip_empty")),
    "questions": ("questions", (), ("text", "text_pair", "label", "choices", "no_header", "record_encoding", "skip_empty")),
    "passages": ("questions with passages", (), retrieval_flags.WITHOUT),
    "answers": ("questions with answers", (), rag_flags.WITHOUT),
    "targets": (
        "texts with targets",
        ("tsv", "csv", "jsonl", "parquet"),
        ("text_pair", "label", "choices", "stride", "freeze", "probe", "lm_weight", "lora", "quantize"),
    ),
}


def check_format(args: argparse.Namespace, kind: str, allowed: Collection[str] = ()) -> None:
    """Raise UserError for a format and columns that do not go with the kind of text.

    Args:
      args: the flags.
      kind: a key of `_KINDS`.
      allowed: flags that have a meaning for this command, although the kind has no such column.
    """
    what, known, without = _KINDS[kind]
    if args.record_format not in (None, *known):
        fix = f"give one of {', '.join(known)}" if known else "they are JSON files of a format of their own, so leave it out"
        raise UserError(f"--format={args.record_format} is none of {what}; {fix}")
    for name in without:
        if getattr(args, name, None) and name not in allowed:
            raise UserError(f"--{_FLAGS.get(name, name)} does not go with {what}; leave it out")
    if args.no_header:
        _check_first_lines(args)


def _check_first_lines(args: argparse.Namespace) -> None:
    """Raise UserError for --no_header if no file has a first line that could name columns."""
    from bertfam.data.corpora.labelled.records import record_format

    paths = [path for name in ("train", "validation", "input") for path in getattr(args, name, None) or ()]
    kinds = {args.record_format or record_format(path) for path in paths}
    if kinds and kinds <= {"jsonl", "parquet"}:
        raise UserError(
            f"--no_header is about the first line of tsv and csv files, and {paths[0]} names its columns; leave it out"
        )


def main(args: argparse.Namespace) -> int:
    """Train; return the exit status."""
    from bertfam.storage.paths import to_path

    if args.quantize:
        from bertfam.kernels.quantized_product import qwix_library

        qwix_library()  # it is missing at once, or never
    given = argparse.Namespace(**_WITHOUT_TEXT | vars(args) | {"benchmark": None, "task_modules": ()})
    if task := benchmark_flags.find_task(args, "train", "validation", "seqio_task"):
        return _train_task(given, task.locate(args.data_dir))
    if args.train or args.seqio_task:
        kinds = [name for name in (*_LABELS, "target") if getattr(args, name)]
        if len(kinds) > 1:
            raise UserError(f"--{kinds[0]} and --{kinds[1]} are two kinds of labels; give one of them")
        kind, gin_file = next((found for name, found in _BY_FLAG.items() if getattr(args, name)), ("texts", _TEXTS))
        check_format(args, kind)
        target_flags.check(args)
        retrieval_flags.check(args)
        rag_flags.check(args)
        if args.seqio_task:
            _check_task(args)
            given.module_import, given.task_modules = [], tuple(args.module_import)  # they import TensorFlow
        if not args.init_from:
            flag = "task" if args.seqio_task else "train"
            raise UserError(f"--{flag} starts from a pretrained model: name its folder with --init_from=DIR")
        given.gin_file = _gin_files(args, gin_file)
        return _train_all(given)
    if not args.gin_file and not (to_path(args.model_dir) / "config.gin").is_file():
        raise UserError(f"--model_dir={args.model_dir} has no run to resume: a new one needs --init_from=DIR and --train=FILE")
    for name in _OF_TRAIN:
        if getattr(args, name) not in (None, False, []):
            raise UserError(f"--{_FLAGS.get(name, name)} describes the labelled texts: give --train=FILE too")
    return pretrain.train(given)


def _check_task(args: argparse.Namespace) -> None:
    """Raise UserError for flags that do not go with --task."""
    kinds = ("tagging", "questions", "retrieval", "rag", "choices")
    for name in ("train", "validation", *kinds, "record_format", "no_header", "record_encoding"):
        if getattr(args, name):
            raise UserError(
                f"--{_FLAGS.get(name, name)} does not go with --task, which has texts with labels or targets and its own splits; "
                "leave it out"
            )


def _train_task(args: argparse.Namespace, files: TaskFiles) -> int:
    """Train on a benchmark task; return the exit status."""
    from bertfam.data.corpora.labelled.question_files import QuestionFiles
    from bertfam.data.corpora.labelled.tagged_files import TaggedFiles

    if not args.init_from:
        raise UserError("--task_name starts from a pretrained model: name its folder with --init_from=DIR")
    base = {QuestionFiles: _QUESTIONS, TaggedFiles: _TAGGING}.get(type(files.corpus), _TEXTS)
    base = _CHOICES if getattr(files.corpus, "choices", ()) else base
    args.gin_file, args.train, args.benchmark = _gin_files(args, base), list(files.corpus.train), files
    return _train_all(args)


def _gin_files(args: argparse.Namespace, base: str) -> list[str]:
    """Return the gin files of a run on labelled texts, `base` before those of the flags."""
    if args.lora is None and args.lora_alpha is not None:
        raise UserError(f"--lora_alpha={args.lora_alpha:g} is of adapters: give --lora=RANK with it, or leave it out")
    return [base, *[_LORA] * (args.lora is not None), *args.gin_file]


def _freeze(word: str) -> str | int:
    """Parse --freeze."""
    if word != "encoder" and not word.isdecimal():
        raise argparse.ArgumentTypeError("write --freeze alone, or the number of lowest layers that are not trained")
    return word if word == "encoder" else int(word)


def _probe(word: str) -> str | int:
    """Parse --probe."""
    if word != "mix" and not word.removeprefix("-").isdecimal():
        raise argparse.ArgumentTypeError("write the number of a layer, or mix")
    return word if word == "mix" else int(word)


def parse_seeds(words: str) -> list[int]:
    """Parse --seeds."""
    try:
        seeds = [int(word) for word in words.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError("write whole numbers with commas between, as 0,1,2") from None
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError("seeds must be at least 0, each once")
    return seeds


def _rates(words: str) -> float | tuple[float, ...]:
    """Parse --learning_rate: a rate, or several."""
    try:
        rates = tuple(float(word) for word in words.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError("write a number, or several with commas between, as 1e-5,2e-5") from None
    if len(set(rates)) < len(rates):
        raise argparse.ArgumentTypeError("rates must differ")
    return rates if len(rates) > 1 else rates[0]


def _train_all(args: argparse.Namespace) -> int:
    """Train once, or with each rate and each seed; return the exit status, that of the first run that does not finish."""
    from bertfam.finetuning.sweep import kept_scores, metric_of, rates_table, table, title
    from bertfam.storage.paths import to_path
    from bertfam.training.jax_setup import shared_programs

    sweeps = isinstance(args.learning_rate, tuple)
    if not args.seeds and not sweeps:
        return pretrain.train(args, LabelFlags(args))
    flag = "--seeds" if args.seeds else "--learning_rate of several rates"
    if any(getattr(args, name) is not None for name in ("coordinator", "num_processes", "process_index")):
        raise UserError(f"{flag} trains one run after another in one process; leave the flags of several processes out")
    folder, rates = to_path(args.model_dir), args.learning_rate if sweeps else (args.learning_rate,)
    if (folder / "config.gin").is_file():
        raise UserError(f"{folder} holds a run already, and {flag} makes a folder of runs; name another --model_dir")
    if args.seeds and len(args.seeds) == 1:
        warn([f"--seeds={args.seeds[0]} is one seed, and its scores have no spread; write several as --seeds=0,1,2"])
    scores: dict[Any, dict[int, dict[str, float]]] = {rate: {} for rate in rates}
    with shared_programs():
        for rate, seed in itertools.product(rates, args.seeds or [None]):
            path = folder / f"rate_{rate:g}" if sweeps else folder
            path = path if seed is None else path / f"seed_{seed}"
            print(f"training {path}", flush=True)
            if status := _train_variant(args, path, rate, seed):
                return status
            scores[rate][seed or 0] = kept_scores(path)
    print(title(path))
    print(*(rates_table(scores, metric_of(path)) if sweeps else table(scores[rates[0]])), sep="\n")
    return 0


def _train_variant(args: argparse.Namespace, path: Path, rate: float | None, seed: int | None) -> int:
    """Train in a folder with a learning rate and a seed, None for those of the flags; return the exit status."""
    from bertfam.config import Override

    bindings = [] if seed is None else [Override(f"SEED = {seed}", f"--seeds={seed}")]
    changed = {"model_dir": str(path), "learning_rate": rate, "gin_bindings": [*args.gin_bindings, *bindings]}
    run = argparse.Namespace(**vars(args) | changed)
    return pretrain.train(run, LabelFlags(run))


# The flags of running text, which `bertfam.commands.flags` reads.
_WITHOUT_TEXT: dict[str, Any] = dict.fromkeys(
    ("task", "marks", "alpha", "vocab", "cache_dir", "input_format", "text_field", "encoding", "language")
) | {"input": [], "language_input": [], "validation_input": []}
_LABELS = ("regression", "multi_label", "tagging", "questions", "retrieval", "rag", "choices")
_OF_TRAIN = (
    *("validation", "text", "text_pair", "label", *_LABELS, *retrieval_flags.NAMES, *rag_flags.NAMES, *target_flags.NAMES),
    *("record_format", "no_header", "record_encoding", "skip_empty"),
    *("epochs", "learning_rate", "batch_size", "length", "stride", "freeze", "probe", "lm_weight", "lora", "lora_alpha"),
    *("quantize", "patience", "seeds"),
)
_BOUND = {"learning_rate": "PEAK", "batch_size": "BATCH_SIZE", "length": "Stage.length", "patience": "Run.patience"}
_FLAGS = {"record_format": "format", "record_encoding": "encoding"}
# Flag -> the kind of labelled text, and the gin file; of texts without such a flag `_TEXTS`.
_BY_FLAG = {
    "tagging": ("words", _TAGGING),
    "questions": ("questions", _QUESTIONS),
    "retrieval": ("passages", _PASSAGES),
    "rag": ("answers", _RAG),
    "choices": ("texts", _CHOICES),
    "target": ("targets", _TARGETS),
}


@dataclass(frozen=True)
class LabelFlags:
    """Labelled texts that the command's flags name; they add to a configuration as a teacher does (`bertfam.session.Teacher`)."""

    args: argparse.Namespace

    def open(self, gin_files: Sequence[str], defaults: Defaults) -> OpenTeacher:
        """Read the labels, and return what they bind in the configuration.

        Raises:
          UserError: a file cannot be read, or flags do not go together.
        """
        from bertfam.data.corpora.labelled.labelled_corpus import LabelledCorpus
        from bertfam.data.seqio_tasks.labelled_tasks import LabelledTask, TargetTask
        from bertfam.finetuning.survey import survey
        from bertfam.finetuning.task_survey import survey_task
        from bertfam.session import OpenTeacher

        config = flags.load_config(self.args, gin_files, defaults=defaults)
        model = target_flags.model_of(self.args, config) if self.args.target else None
        self._check_rank(config)
        towers = rag_flags.open_towers(self.args) if self.args.rag else None
        if towers is not None:
            corpus: Any = rag_flags.corpus(self.args, config, towers)
        else:
            corpus = self._corpus() if model is None else target_flags.corpus(self.args, model)
        contents = survey_task(corpus) if isinstance(corpus, LabelledTask | TargetTask) else survey(corpus)
        bindings = [*self._text_bindings(contents), *self._run_bindings(config, contents)]
        warnings = [*(self.args.benchmark.warnings if self.args.benchmark else []), *contents.warnings]
        if self.args.retrieval:
            warnings += retrieval_flags.check_negatives(self.args, config, contents)
            bindings += retrieval_flags.row_bindings(self.args, config)
        elif towers is not None:
            bindings += rag_flags.row_bindings(self.args, config, towers)
        elif model is not None:
            bindings += target_flags.row_bindings(self.args, config, model)
        elif isinstance(contents.corpus, LabelledCorpus) and not contents.choices:
            bindings += target_flags.text_bindings(self.args, config, self._saved_run())
        return OpenTeacher(bindings, warnings=warnings)

    @property
    def _origin(self) -> str:
        """The flag that names the texts."""
        if self.args.seqio_task:
            return f"--task={self.args.seqio_task}"
        return f"--task_name={self.args.task_name}" if self.args.benchmark else f"--train={self.args.train[0]}"

    def _check_rank(self, config: Config) -> None:
        """Raise UserError if adapters of a new run would be as large as the kernels that they adapt."""
        from bertfam.storage.paths import to_path

        rank = self.args.lora
        if rank is None or (to_path(self.args.model_dir) / "config.gin").is_file():
            return
        model = target_flags.network_of(config)
        if rank >= model.hidden_size:
            raise UserError(
                f"--lora={rank} is no low rank: {type(model).__name__}.hidden_size is {model.hidden_size}, so that the adapters "
                "have more parameters than the kernels; give a lower one, such as 8, or leave it out to train all"
            )

    def _corpus(self) -> LabelledCorpus | TaggedFiles | QuestionFiles | PassageFiles:
        from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
        from bertfam.data.corpora.labelled.question_files import QuestionFiles
        from bertfam.data.corpora.labelled.tagged_files import TaggedFiles
        from bertfam.data.seqio_tasks.labelled_tasks import LabelledTask

        args = self.args
        if args.benchmark:
            corpus: LabelledCorpus | TaggedFiles | QuestionFiles | PassageFiles = args.benchmark.corpus
            return corpus
        kind: LabelKind = "number" if args.regression else "classes" if args.multi_label else "class"
        if args.seqio_task:
            task = target_flags.seqio_task(args)
            names = {"text": args.text or LabelledTask.text, "label": args.label or "targets", "text_pair": args.text_pair}
            return LabelledTask(task, **names, kind=kind, skip_empty=args.skip_empty)
        if args.retrieval:
            return retrieval_flags.corpus(args)
        if args.questions:
            return QuestionFiles(tuple(args.train), tuple(args.validation))
        if args.tagging:
            return TaggedFiles(
                tuple(args.train),
                tuple(args.validation),
                args.record_format,
                args.text,
                args.label,
                encoding=args.record_encoding or TaggedFiles.encoding,
            )
        return LabelledFiles(
            tuple(args.train),
            tuple(args.validation),
            args.record_format,
            args.text or LabelledFiles.text,
            args.text_pair,
            args.label or "label",
            kind,
            header=not args.no_header,
            encoding=args.record_encoding or LabelledFiles.encoding,
            skip_empty=args.skip_empty,
            choices=args.choices or (),
        )

    def _text_bindings(self, contents: Survey) -> list[Override]:
        """Return the bindings of the labelled texts and of the head that predicts their labels."""
        from bertfam.config import Override
        from bertfam.config.values import bindings_of

        corpus, args = contents.corpus, self.args
        lines = [f"TextData.corpus = @{type(corpus).__name__}()"]
        lines += [f"FineTuning.head = @{contents.head}()"] * bool(contents.head)
        lines += [f"{contents.head}.{name} = {value!r}" for name, value in contents.head_values.items()]
        if contents.choices:
            lines += [f"{name}.choices = {contents.choices}" for name in ("ChoiceTexts", "ChoiceLabels")]
        elif contents.head and not corpus.labels_words:
            lines.append(f"Labels.count = {corpus.labels}")
        named = [Override(line, self._origin) for line in lines] + bindings_of(corpus, self._origin)
        named += self._window_bindings(corpus)
        if args.freeze is not None:
            named.append(Override(f"FineTuning.freeze = {args.freeze!r}", f"--freeze={args.freeze}"))
        if args.lm_weight is not None:
            named.append(Override(f"FineTuning.lm = {args.lm_weight!r}", f"--lm_weight={args.lm_weight:g}"))
        for name, value in (("rank", args.lora), ("alpha", args.lora_alpha)):
            if value is not None:
                flag = "lora" if name == "rank" else f"lora_{name}"
                named.append(Override(f"Lora.{name} = {value!r}", f"--{flag}={value}"))
        if args.quantize:
            named.append(Override("FineTuning.quantization = @Quantization()", "--quantize"))
        if args.probe is not None:
            probe = ("FineTuning.probe = @LinearProbe()", f"LinearProbe.layer = {args.probe!r}")
            named += [Override(line, f"--probe={args.probe}") for line in probe]
        return named

    def _window_bindings(self, corpus: Corpus) -> list[Override]:
        """Return the bindings of the windows into which long texts are divided."""
        from bertfam.config import Override
        from bertfam.data.corpora.labelled.labelled_corpus import LabelledCorpus
        from bertfam.data.corpora.labelled.question_files import QuestionFiles

        stride = self.args.stride
        if stride is None:
            return []
        lines = [f"AnswerWindows.stride = {stride}"]
        if not isinstance(corpus, QuestionFiles):
            if not isinstance(corpus, LabelledCorpus) or corpus.text_pair or corpus.choices:
                raise UserError(f"--stride={stride}: windows are of single texts with labels, or of questions; leave it out")
            lines = ["TextData.rows = @TextWindows()", f"TextWindows.stride = {stride}"]
        return [Override(line, f"--stride={stride}") for line in lines]

    def _run_bindings(self, config: Config, contents: Survey) -> list[Override]:
        """Return the bindings of the length of the run and of the flags of training."""
        from bertfam.config import Override
        from bertfam.plurals import plural

        overrides = list[Override]()
        for flag, name in _BOUND.items():
            if (value := getattr(self.args, flag)) is not None:
                if not value > 0:
                    raise UserError(f"--{flag}={value} must be above 0")
                overrides.append(Override(f"{name} = {value!r}", f"--{flag}={value}"))
        if contents.choices:  # each has a part of the row
            length = contents.choices * (self.args.length or config.value("Stage.length"))
            overrides.append(Override(f"Stage.length = {length}", self._origin))
        epochs = 3.0 if self.args.epochs is None else self.args.epochs
        if not 0 < epochs < 1e6:
            raise UserError(f"--epochs={epochs:g} must be above 0")
        updates = contents.texts / (self.args.batch_size or config.value("Stage.batch_size"))  # of an epoch
        steps, per_epoch, origin = max(1, round(epochs * updates)), max(1, round(updates)), f"--epochs={epochs:g}"
        lengths = {"TRAIN_STEPS": steps, "EVAL_EVERY": per_epoch, "CHECKPOINT_EVERY": per_epoch}
        if not config.binds("LinearDecay.warmup_steps"):
            lengths["LinearDecay.warmup_steps"] = warmup = round(_WARMUP * steps)
            self._check_warmup(warmup, f"{origin} of {plural(contents.texts, 'text')} is {plural(steps, 'update')}")
        return overrides + [Override(f"{name} = {value}", origin) for name, value in lengths.items()]

    def _check_warmup(self, warmup_steps: int, origin: str) -> None:
        """Raise UserError if MODEL_DIR has a run with another warm-up, because of other texts or another number of epochs."""
        saved = self._saved_run()
        if saved and getattr(saved.optimizer.schedule, "warmup_steps", warmup_steps) != warmup_steps:
            raise UserError(
                f"{origin}, and the run in {self.args.model_dir} has {saved.total_steps:,} and another warm-up; resume it by "
                f"--model_dir={self.args.model_dir} alone, or give another --model_dir"
            )

    def _saved_run(self) -> Run | None:
        """Return the run in MODEL_DIR, None if there is none that has trained."""
        from bertfam.config.state import preserve_gin
        from bertfam.storage.paths import to_path
        from bertfam.training.checkpoints import selection
        from bertfam.training.model_dir import read_run

        folder = to_path(self.args.model_dir)
        if not (folder / "config.gin").is_file() or selection.choose(folder) is None:
            return None
        with preserve_gin():
            return read_run(folder)
