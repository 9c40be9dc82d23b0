"""Flags that several commands share."""

from __future__ import annotations

import argparse
import fnmatch
import functools
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bertfam.data.corpora.formats import INPUT_FORMATS
from bertfam.data.corpora.sentences import LANGUAGES, UNDETERMINED
from bertfam.errors import UserError, warn_once
from bertfam.storage.buckets import is_remote
from bertfam.storage.files import check_file
from bertfam.storage.paths import to_path, unreplaced

if TYPE_CHECKING:
    from pathlib import Path

    from bertfam.config import Config, Defaults, Override
    from bertfam.data.text_data import TextData

EMBEDDED = "python_docs"  # a task that needs no seqio
# Tasks of bertfam.data.seqio_tasks.tfds, which imports TensorFlow and help does not.
TFDS_TASKS = (
    *(f"wiki40b_{language}" for language in ("en", "de", "es", "fi", "fr", "zh_cn")),
    *(f"wikipedia_{language}" for language in ("en", "de", "es", "fi", "fr", "zh")),
    *("c4_en", "c4_realnewslike", "lm1b"),
)
_PAGE = b"<!DOCTYPE html>"  # how a page begins
_LONGEST_NAME, _LONGEST_PATH = 255, 4000  # bytes, on Linux
_DEFAULTS = "tasks/text.gin"  # every other file overrides it
# flags of files that a command reads
_READ = (
    *("input", "language_input", "validation_input", "gin_file", "bad_words", "dependencies", "coreference"),
    *("tags", "tags_held_out", "relations", "relations_held_out", "entities", "entities_held_out", "edges", "edges_held_out"),
)
_WHERE = ("input", "language_input", "task")  # where text comes from
# Parameters by which a run keeps what earlier versions computed.
_KEPT = ("TextData.rows_version", "TextData.similar_lengths", "Run.seed_bits")
# Flags that describe how --input is read.
_OF_INPUT = ("validation_input", "input_format", "text_field", "encoding", "language")


def path(text: str) -> str:
    """Parse the path of a local file; expand `~`, and reject paths that are not on this machine."""
    if "://" in text:
        raise argparse.ArgumentTypeError("it is not on this machine, and must be; copy it here, or mount the bucket")
    return _checked_names(os.path.expanduser(text))


def files(text: str) -> str:
    """Parse the path, address or glob of files of text; expand `~`."""
    return _checked_names(os.path.expanduser(text))


def folder(text: str) -> str:
    """Parse the path of a folder, local or in a bucket (gs://BUCKET/NAME)."""
    if re.match(r"(hf|https?)://", text) and ("huggingface.co/" in text or text.startswith("hf:")):
        raise argparse.ArgumentTypeError("nothing is downloaded: hf download NAME --local-dir DIR, and name DIR")
    if "://" in text and not is_remote(text):
        raise argparse.ArgumentTypeError("it is neither on this machine nor at gs://; copy it, or mount the bucket")
    if text.startswith("gs:") and not is_remote(text):
        raise argparse.ArgumentTypeError(f"an address in a bucket begins with gs://; write gs://{text[3:].lstrip('/')}")
    return _checked_names(os.path.expanduser(text))


def _checked_names(text: str) -> str:
    """Return the path; reject names that no file system has, which every access would refuse with an exception of its own."""
    if "\0" in text:
        raise argparse.ArgumentTypeError("it has a zero byte, which no path may have")
    length = max(len(os.fsencode(name)) for name in text.split("/"))
    if length > _LONGEST_NAME or len(os.fsencode(text)) > _LONGEST_PATH:
        raise argparse.ArgumentTypeError(f"a name in it has {length} bytes; names have at most {_LONGEST_NAME}")
    if fault := unreplaced(text):
        raise argparse.ArgumentTypeError(fault)
    return text


def text(word: str) -> str:
    """Parse a TEXT of the command line; reject bytes that are not UTF-8."""
    try:
        word.encode()
    except UnicodeEncodeError:
        is_utf_8 = sys.getfilesystemencoding() == "utf-8"
        fix = "" if is_utf_8 else ": if it is, set PYTHONUTF8=1, since this locale is not"
        raise argparse.ArgumentTypeError(f"the text is not UTF-8{fix}") from None
    return word


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add --gin_file, --module_import, and args.gin_bindings for the --gin.NAME=value flags; `load_config` reads them."""
    group = parser.add_argument_group(
        "configuration",
        "--gin.NAME=value binds one more value, which overrides the files; repeatable:\n"
        "--gin.TRAIN_STEPS=100 --gin.Execution.dtype='\"bfloat16\"'",
    )
    group.add_argument(
        "--gin_file",
        type=folder,
        action="append",
        default=[],
        metavar="FILE",
        help="gin file, here or among those shipped with bertfam (runs/..., models/..., objectives/..., meshes/...); "
        "repeatable; later files override earlier ones. Without an objective in them they are laid over the configuration that "
        "MODEL_DIR has, or over the one that --init_from gives",
    )
    add_module_import(
        group,
        "Python module to import first, which registers your own configurables; with --task, the module that registers the "
        "task or mixture (import configurables by a line `import MODULE` in a gin file then); repeatable",
    )
    parser.set_defaults(gin_bindings=[])


_MODULE_IMPORT = (
    "Python module to import first, which registers what the model is made of, such as a family of your own; repeatable"
)


def add_module_import(parser: argparse._ActionsContainer, description: str = _MODULE_IMPORT) -> None:
    """Add --module_import; `import_modules` imports the modules, and so does `load_config`."""
    parser.add_argument("--module_import", action="append", default=[], metavar="MODULE", help=description)


def import_modules(args: argparse.Namespace) -> None:
    """Import the modules of --module_import, except those that register a seqio task: `load_config` says why.

    A command that reads a model folder calls this first, since the folder itself may not name modules to import.
    """
    from bertfam.config.imports import import_module
    from bertfam.config.parse import Import, Origin

    for module in configurable_modules(args):
        import_module(Import(module, Origin(f"--module_import={module}")))


def prepare_model(args: argparse.Namespace) -> None:
    """Import the modules of --module_import, and keep what is compiled for accelerators from now on.

    A command of one process that runs a model calls this once its flags are checked, before it reads the model.
    """
    from bertfam.training.jax_setup import enable_compilation_cache

    import_modules(args)
    enable_compilation_cache()


def configurable_modules(args: argparse.Namespace) -> list[str]:
    """Return the modules of --module_import that register configurables."""
    task = getattr(args, "task", None)
    return [] if task and task != EMBEDDED else args.module_import


def add_model_dir(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add --model_dir, the folder of a run, which pretrain and import create and other commands read."""
    parser.add_argument(
        "--model_dir",
        type=folder,
        required=required,
        metavar="DIR",
        help="folder of the run, here or at gs://: config.gin, vocab/, cache/, checkpoints/, metrics.jsonl",
    )


def check_model_dir(args: argparse.Namespace, *, huggingface: bool = True) -> None:
    """Refuse a --model_dir without a model, before a command imports what takes seconds; its content is checked later.

    Args:
      args: the flags.
      huggingface: True if the command reads Hugging Face folders too.
    """
    from bertfam.interop.folders import check_is_model, check_is_run

    (check_is_model if huggingface else check_is_run)(args.model_dir)


def check_output_file(args: argparse.Namespace, name: str, **options: Any) -> None:
    """Raise UserError unless the file of --`name` can be written, and is none that the command reads.

    Args:
      args: the flags.
      name: the flag, without dashes.
      options: those of `bertfam.storage.files.check_file`.
    """
    if flag := reader_of(args, getattr(args, name)):
        raise UserError(f"--{name}={getattr(args, name)} is read too, by --{flag}: name another file to write")
    check_file(getattr(args, name), flag=f"--{name}", **options)


def check_page(args: argparse.Namespace, name: str) -> None:
    """Raise UserError unless the HTML page of --`name` can be written; --overwrite replaces a page, and no other file."""
    page = getattr(args, name)
    check_output_file(args, name, replaces=args.overwrite, otherwise="give --overwrite to replace it")
    if os.path.lexists(page):
        with open(page, "rb") as file:
            begin = file.read(len(_PAGE))
        if begin and begin != _PAGE:
            raise UserError(f"--{name}={page} is no page of bertfam, and --overwrite replaces only these: name another file")


def reader_of(args: argparse.Namespace, path: str | os.PathLike[str]) -> str | None:
    """Return the flag, without dashes, by which the command reads a local file; None if it does not."""
    output = os.path.abspath(path)
    for flag in _READ:
        given = getattr(args, flag, None) or []
        for pattern in [given] if isinstance(given, str) else given:
            name = pattern.partition("=")[2] if flag == "language_input" else pattern
            if fnmatch.fnmatch(output, os.path.abspath(name)) or os.path.realpath(output) == os.path.realpath(name):
                return flag
    return None


def add_workers(parser: argparse.ArgumentParser, work: str) -> None:
    """Add --processes and --beam, for `work` on this machine or many."""
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help=f"processes that {work}; 0: only this one (default: one per core); same result",
    )
    add_beam(parser, work)


def add_beam(parser: argparse.ArgumentParser, work: str) -> None:
    """Add --beam, for `work` on many machines."""
    parser.add_argument(
        "--beam",
        nargs="?",
        const="",
        metavar="OPTIONS",
        help=f"{work} with Apache Beam, one file per worker, with the same result; its pipeline options in one string: "
        "--beam='--runner=FlinkRunner --flink_master=HOST:8081'; all machines need access to the text and the folder of --output",
    )


def check_workers(args: argparse.Namespace) -> None:
    """Raise UserError for numbers of processes that make no sense."""
    if args.processes is not None and args.processes < 0:
        raise UserError(f"--processes={args.processes} is negative")
    if args.processes is not None and args.beam is not None:
        raise UserError("--processes does not go with --beam, whose runner decides how many there are; leave one out")


def add_processes(parser: argparse.ArgumentParser) -> None:
    """Add --coordinator, --num_processes, --process_index and --initialization_timeout, for multi-process training."""
    group = parser.add_argument_group(
        "several processes",
        "Run the same command with the same files on each machine, with a different --process_index (launch/local.py does so on\n"
        "one machine). --model_dir and the token cache must be in folders that all processes share, or in a bucket (gs://).\n"
        "Flags that are left out are read from SLURM (srun), GKE, the metadata of a Cloud TPU VM, or the index of a Kubernetes\n"
        "Job; --num_processes=1 trains in one process there.",
    )
    group.add_argument("--coordinator", metavar="HOST:PORT", help="host of process 0, and a free port on it")
    group.add_argument("--num_processes", type=int, metavar="N", help="number of processes")
    group.add_argument("--process_index", type=int, metavar="I", help="index of this process, from 0 to N-1")
    group.add_argument(
        "--initialization_timeout",
        type=float,
        default=300,
        metavar="SECONDS",
        help="how long to wait for the other processes (default: 300)",
    )


def add_average(parser: argparse.ArgumentParser) -> None:
    """Add --average, for commands that read a trained model."""
    parser.add_argument(
        "--average",
        action="store_true",
        help="use the moving average of the parameters, which a run with Run.average_decay keeps",
    )


def add_step(parser: argparse.ArgumentParser, purpose: str = "checkpoint of the run") -> None:
    """Add --step, which `step_of` reads, for commands that read a trained model."""
    parser.add_argument(
        "--step",
        type=_step,
        metavar="N",
        help=f"{purpose}: a step, or best, the one with the best held-out Run.keep_best (default: the newest)",
    )


def _step(word: str) -> int | str:
    return word if word == "best" else int(word)


def step_of(args: argparse.Namespace) -> int | None:
    """Return the step that --step names, None for the newest, once the modules of the run are imported."""
    from bertfam.training.model_dir import best_step

    step: int | None = best_step(args.model_dir) if args.step == "best" else args.step
    return step


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json, which prints one JSON value to stdout instead of text."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_files(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add flags for text in the user's own files only; return the group of flags."""
    group = parser.add_argument_group("text", _about_files())
    _add_input(group, "files to read", required=True)
    _add_format(group)
    return group


def _about_files() -> str:
    width = max(map(len, INPUT_FORMATS))
    return (
        "Files may be compressed by gzip or zstd,\nwhatever their names. --input_format is the format of their content:\n"
        + "\n".join(f"  {name:{width}}  {entry.summary}" for name, entry in INPUT_FORMATS.items())
        + "\nfor example: --input='pages/*.jsonl.zst' --input_format=jsonl --text_field=body --language=de"
    )


def _add_input(group: argparse._ArgumentGroup, what: str, *, required: bool = False) -> None:
    group.add_argument(
        "--input",
        type=files,
        action="append",
        default=[],
        required=required,
        metavar="GLOB",
        help=f"{what}, such as 'books/*.txt.gz' (in quotes; ** matches subfolders), here or at gs://, s3://, ...; repeatable",
    )


def _add_format(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--input_format", choices=tuple(INPUT_FORMATS), default=None, help="format of the files, see above (default: sentences)"
    )
    group.add_argument(
        "--text_field",
        metavar="NAME",
        help="field or column of the text, for jsonl and parquet; OUTER.INNER for one in an object or struct (default: text)",
    )
    group.add_argument(
        "--encoding", metavar="NAME", help="encoding of the files, such as latin-1, cp1252, utf-16 or gb18030 (default: utf-8)"
    )


def add_source(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add flags for the source of text, files or a registered task; return the group of flags."""
    group = parser.add_argument_group(
        "text", f"Text comes from your own files (--input) or from a registered task (--task). {_about_files()}"
    )
    _add_input(group, "files to train on")
    group.add_argument(
        "--language_input",
        type=files,
        action="append",
        default=[],
        metavar="CODE=GLOB",
        help="text in one of several languages, as --language_input='de=wiki/de/*.txt' --language_input='fi=wiki/fi/*.txt'; each "
        "has its own rules for sentences, and its share by --alpha; zh_tw has those of zh, and one without any is und_tr, say",
    )
    group.add_argument(
        "--alpha",
        type=float,
        metavar="A",
        help="the share of each language is as its size to the power A: 1 as they are, less lifts the small ones (multilingual "
        "BERT: 0.7, XLM: 0.5, XLM-R: 0.3; default: 1); of the vocabulary and of the rows, not of a token cache, which holds all",
    )
    _add_format(group)
    group.add_argument(
        "--language",
        metavar="CODE",
        help="language of the text, for splitting it into sentences: de, zh, ...; und: others (default: en)",
    )
    group.add_argument(
        "--task",
        metavar="NAME",
        help="registered seqio task or mixture, instead of --input; --module_import=MODULE names the module that registers it; "
        "the tasks of a mixture become corpora with its rates; "
        f"{EMBEDDED}: the documentation of installed Python packages; of data that TensorFlow Datasets has prepared "
        f"(tfds build): {', '.join(TFDS_TASKS)}",
    )
    group.add_argument(
        "--marks",
        choices=("given", "names", "salient"),
        help="phrases and entities, which ERNIE masks as wholes, and REALM one of; given: the text has U+27E8 and U+27E9 around "
        "phrases and U+27E6 and U+27E7 around entities, which are removed; names: capitalised words that stand together and "
        "numbers are entities; salient: capitalised words that stand together and dates are",
    )
    return group


def add_text(parser: argparse.ArgumentParser) -> None:
    """Add flags for the inputs of a token cache: training text, held-out text, and a vocabulary; `load_config` reads them."""
    group = add_source(parser)
    group.add_argument(
        "--validation_input",
        type=files,
        action="append",
        default=[],
        metavar="GLOB",
        help="held-out text files; without them a share of --input is held out; repeatable",
    )
    group.add_argument("--vocab", type=folder, metavar="DIR", help="vocabulary folder, as bertfam vocab writes it")


def add_cache_dir(parser: argparse.ArgumentParser) -> None:
    """Add --cache_dir, the folder of the token cache."""
    parser.add_argument(
        "--cache_dir",
        type=folder,
        metavar="DIR",
        help="token cache: an existing one, built by bertfam cache, needs no text and no --vocab; a missing one is built there "
        "(default: MODEL_DIR/cache)",
    )


def load_config(
    args: argparse.Namespace,
    gin_files: Sequence[str] | None = None,
    bindings: Sequence[Override] = (),
    defaults: Defaults | None = None,
    *,
    reads_text: bool = False,
    branch: Path | None = None,
) -> Config:
    """Load the configuration that the flags of add_config and add_source or add_text describe.

    With a seqio task the modules of --module_import register it. They import TensorFlow, so only a process that reads text
    imports them: this one, or a child.

    Args:
      args: the flags.
      gin_files: the gin files; None: those of --gin_file. Others belong to the model folder.
      bindings: bindings over those of the files and the text flags, and under those of --gin.NAME=value.
      defaults: what the gin files may leave out.
      reads_text: the command itself reads the text, so that this process may import TensorFlow.
      branch: the folder of the run that a new one goes on from.

    Raises:
      UserError: for a mistake in the configuration, or a flag without effect.
    """
    import dataclasses

    from bertfam.config import Defaults, load
    from bertfam.config.paths import shipped

    defaults = defaults or Defaults()
    files = args.gin_file if gin_files is None else gin_files
    saved = [name for name in files if name not in args.gin_file]
    bindings = [*text_bindings(args, _mixture_rates(args, in_child=not reads_text)), *bindings, *args.gin_bindings]
    under = [shipped(name) for name in (_DEFAULTS, *defaults.files)]
    config = load([*under, *files], bindings, configurable_modules(args), saved=saved, defaults=defaults.bindings)
    config = _with_kept_versions(args, config, branch)
    config = dataclasses.replace(config, files=tuple(files))  # those that messages name
    _report_overridden(args, config)
    given = next((flag for flag in _OF_INPUT if getattr(args, flag, None)), None)
    if given and not args.task and not config.refers_to("TextFiles"):
        raise UserError(f"--{given} says how --input is read: give --input=GLOB with it")
    if args.alpha is not None and not config.refers_to("Mixture"):
        raise UserError("--alpha says how much there is of each language: give --language_input=CODE=GLOB with it")
    return config


def _with_kept_versions(args: argparse.Namespace, config: Config, branch: Path | None) -> Config:
    """Return the configuration with the versions that the run in --model_dir or its trunk began with, where it states none."""
    from bertfam.config import load

    named = branch or getattr(args, "model_dir", None)
    folder = to_path(named) if args.gin_file and named else None
    if folder is None or not all((folder / name).is_file() for name in ("config.gin", "fingerprint.json")):
        return config  # a new run, or an imported model
    saved = str(folder / "config.gin")
    began = load([saved], module_imports=config.modules, saved=[saved])
    return functools.reduce(lambda kept, name: kept.with_binding_of(began, name), _KEPT, config)


def load_files(args: argparse.Namespace, more: Sequence[str] = ()) -> Config:
    """Load the configuration of --gin_file, the lines `more`, and --gin.NAME=value, for commands that read no text.

    Raises:
      UserError: for a mistake in the configuration, or if no file is given.
    """
    import dataclasses

    from bertfam.config import load
    from bertfam.config.paths import shipped

    if not args.gin_file:
        raise UserError("no configuration: give --gin_file=FILE (runs/quickstart.gin, say)")
    config = load([shipped(_DEFAULTS), *args.gin_file], [*more, *args.gin_bindings], args.module_import)
    _report_overridden(args, config)
    return dataclasses.replace(config, files=tuple(args.gin_file))  # those that messages name


def _report_overridden(args: argparse.Namespace, config: Config) -> None:
    """Warn once about every --gin_file without effect, since later files and flags override all that it binds."""
    for name in args.gin_file:
        if by := config.overridden.get(name):
            is_file = by[-1] in args.gin_file
            verb = "override" if by[1:] else "overrides"
            fix = f"give it after {by[-1]} if it is to override that" if is_file else "leave out one of them"
            warn_once(f"--gin_file={name} has no effect: {', '.join(by)} {verb} all that it binds; {fix}")


def named_text(args: argparse.Namespace, data: TextData) -> TextData:
    """Return `data` with only the corpus and the vocabulary that the flags of add_text name."""
    import dataclasses

    corpus = data.corpus if any(getattr(args, flag, None) for flag in (*_WHERE, *_OF_INPUT, "train")) else None
    return dataclasses.replace(data, corpus=corpus, vocabulary=data.vocabulary if args.vocab else None)


def _mixture_rates(args: argparse.Namespace, *, in_child: bool) -> dict[str, float] | None:
    """Return the rates of the tasks of the seqio mixture that --task names; None if it names none."""
    from bertfam.data.seqio_tasks.mixtures import find_rates

    _check_one_source(args)  # before seqio is imported
    if not args.task or args.task == EMBEDDED or (args.task in TFDS_TASKS and not args.module_import):
        return None
    return find_rates(args.task, args.module_import, in_child=in_child)


def _check_one_source(args: argparse.Namespace) -> None:
    where = [f"--{flag}" for flag in _WHERE if getattr(args, flag)]
    if len(where) > 1:
        raise UserError(f"{where[0]} and {where[1]} both say where the text comes from; give one of them")


def text_bindings(args: argparse.Namespace, rates: dict[str, float] | None = None) -> list[Override]:
    """Return the gin bindings for the flags of add_source and add_text, each with its flag as origin.

    Args:
      args: the flags.
      rates: the rates of the tasks of --task by their names, if it is a mixture.
    """
    from bertfam.config import Override

    _check_one_source(args)
    if args.marks and not (args.input or args.task):
        raise UserError(
            f"--marks={args.marks} says what is marked in the text: give --input=GLOB or --task=NAME with it; a "
            f"token cache has the marks that it was built with (bertfam cache --marks={args.marks})"
        )
    seqio_task = bool(args.task) and args.task != EMBEDDED
    for flag in _OF_INPUT:
        if args.task and getattr(args, flag, None) and not (flag == "language" and seqio_task):
            raise UserError(f"--{flag} says how --input is read: it does not go with --task={args.task}")
        if args.language_input and flag in ("language", "validation_input") and getattr(args, flag, None):
            raise UserError(f"--{flag} is of one language: it does not go with --language_input, which names each; leave it out")
    # flag -> what it binds
    corpus = "MarkedText.corpus" if args.marks else "TextData.corpus"
    table = {
        "input": {corpus: "@TextFiles()", "TextFiles.train": "{!r}"},
        "task": {corpus: "@SeqioTask()", "SeqioTask.name": "{!r}"} if seqio_task else {corpus: "@PythonDocs()"},
        "marks": {"TextData.corpus": "@MarkedText()", "MarkedText.marks": "{!r}"},
        "validation_input": {"TextFiles.validation": "{!r}"},
        "input_format": {"TextFiles.input_format": "{!r}"},
        "text_field": {"TextFiles.text_field": "{!r}"},
        "encoding": {"TextFiles.encoding": "{!r}"},
        "language": {f"{'SeqioTask' if seqio_task else 'TextFiles'}.language": "{!r}"},
        "vocab": {"TextData.vocabulary": "{!r}"},
        "cache_dir": {"TextData.cache_dir": "{!r}"},
    }
    if seqio_task and args.module_import:
        table["module_import"] = {"SeqioTask.modules": "{!r}"}
    if rates:
        table |= {"task": _mixture_bindings(rates, marked=bool(args.marks)), "marks": {"MarkedText.marks": "{!r}"}}
    overrides = []
    for flag, bindings in table.items():
        if given := getattr(args, flag, None):
            origin = f"--{flag}={given if isinstance(given, str) else given[0]}"
            value = given if isinstance(given, str) else tuple(given)
            overrides += [Override(f"{name} = {text.format(value)}", origin) for name, text in bindings.items()]
    return overrides + [Override(*binding) for binding in _language_bindings(args)]


def _mixture_bindings(rates: dict[str, float], *, marked: bool) -> dict[str, str]:
    """Return the bindings for the tasks of a seqio mixture, each of which is a corpus."""
    names: dict[str, str] = {}  # corpus -> task
    for task in rates:
        # The name of a corpus is a scope in gin and a folder of the token cache.
        corpus = re.sub(r"\W", "_", task, flags=re.ASCII)
        corpus = f"task_{corpus}" if corpus[0].isdigit() or corpus.lower() == "vocab" else corpus
        while corpus in names:
            corpus += "_"
        names[corpus] = task
    kind = "MarkedText" if marked else "SeqioTask"
    return {
        "TextData.corpus": "@Mixture()",
        "Mixture.corpora": f"({', '.join(f'@{name}/{kind}()' for name in names)},)",
        "Mixture.names": repr(tuple(names)),
        "Mixture.rates": repr(tuple(rates.values())),
        **{f"{name}/SeqioTask.name": repr(task) for name, task in names.items()},
        **({f"{name}/MarkedText.corpus": f"@{name}/SeqioTask()" for name in names} if marked else {}),
    }


def _language_bindings(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the bindings for --language_input and --alpha, each with its flag."""
    found: dict[str, list[str]] = {}
    for given in args.language_input:
        code, _, glob = given.partition("=")
        if not (re.fullmatch("[A-Za-z][A-Za-z0-9_]*", code) and glob):
            raise UserError(f"--language_input={given}: it must be CODE=GLOB, as --language_input='de=wiki/de/*.txt'")
        found.setdefault(code, []).append(os.path.expanduser(glob))
    bindings = []
    if found:
        origin = f"--language_input={args.language_input[0]}"
        corpora = ", ".join(f"@{code}/TextFiles()" for code in found)
        bindings = [("TextData.corpus = @Mixture()", origin), (f"Mixture.corpora = ({corpora},)", origin)]
        bindings.append((f"Mixture.names = {tuple(found)!r}", origin))
        for code, globs in found.items():
            origin = f"--language_input={code}={globs[0]}"
            language = code.partition("_")[0]
            if language not in (*LANGUAGES, UNDETERMINED):
                raise UserError(
                    f"{origin}: language {language!r} has no sentence rules: begin with one of {', '.join(LANGUAGES)}, or write "
                    f"{UNDETERMINED}_{code}={globs[0]} for rules that fit most others"
                )
            bindings += [
                (f"{code}/TextFiles.{name} = {value!r}", origin)
                for name, value in (("train", tuple(globs)), ("language", language))
            ]
    if args.alpha is not None:
        if not 0 < args.alpha <= 1:
            raise UserError(f"--alpha={args.alpha} must be above 0 and at most 1, which leaves the languages as they are")
        bindings.append((f"Mixture.temperature = {1 / args.alpha!r}", f"--alpha={args.alpha}"))
    return bindings
