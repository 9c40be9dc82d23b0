"""Table of the commands, each imported only when it is called.

A module under bertfam.commands defines SUMMARY (one line), add_arguments(parser), main(args) -> exit status, and optionally
EXAMPLE (shown at the end of its --help). Its top-level imports are light, so that --help answers at once.
"""

import argparse
import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

from bertfam.arguments import Parser


class Command(NamedTuple):
    """Entry of the table of commands.

    Attributes:
      module: name of the module under bertfam.commands.
      summary: the module's SUMMARY, repeated here so that the overview imports no command.
    """

    module: str
    summary: str


# Names of one word, or of two, as of the commands of a group: "analyze attention".
COMMANDS = {
    "clean": Command("clean", "clean web text as C4 was, with a report of what each rule removed"),
    "vocab": Command("vocab", "train a vocabulary on text: WordPiece, whole words, unigram, BPE or byte-level BPE"),
    "encode": Command("encode", "show the pieces, ids and offsets of texts"),
    "cache": Command("cache", "tokenise a corpus once, into a token cache"),
    "preview": Command("preview", "show corrupted training rows, decoded"),
    "configs": Command("configs", "list the gin files shipped with bertfam: runs, models, objectives, tasks and meshes"),
    "explain": Command("explain", "explain a class that gin can bind: its fields, their defaults, and where they are bound"),
    "check": Command("check", "validate a configuration without compiling"),
    "plan": Command("plan", "compile a run for any TPU slice ahead of time and report memory, cost and fit"),
    "pretrain": Command("pretrain", "train a model"),
    "distill": Command("distill", "distill a trained model into a smaller one"),
    "finetune": Command("finetune", "fine-tune a model on texts with labels or with target texts"),
    "predict": Command("predict", "predict labels, or generate target texts, with a fine-tuned model"),
    "embed": Command("embed", "embed texts by an encoder, as vectors"),
    "index": Command("index", "embed passages into an index, for retrieve"),
    "retrieve": Command("retrieve", "find the passages of an index that fit questions best"),
    "evaluate": Command(
        "evaluate",
        "measure models on held-out text, minimal pairs of sentences, retrieval, a seqio task, or the tasks of a benchmark",
    ),
    "analyze attention": Command("analyze_attention", "draw the attention of a model on a text, as an HTML page"),
    "analyze heads": Command(
        "analyze_heads", "measure the roles of attention heads: positions, [SEP], rare tokens, dependencies, coreference"
    ),
    "analyze cloze": Command(
        "analyze_cloze", "measure what a pretrained model knows: blanks of eight kinds, facts, pairs about bias"
    ),
    "analyze importance": Command(
        "analyze_importance", "measure the importance of attention heads, and the scores as heads are removed"
    ),
    "analyze probes": Command(
        "analyze_probes",
        "train probes on the hidden states of each layer: parts of speech, entities, relations, with control tasks",
    ),
    "analyze layers": Command(
        "analyze_layers", "compare the layers of a model, or of two, by CKA, and measure their anisotropy and self-similarity"
    ),
    "analyze neighbours": Command(
        "analyze_neighbours", "find the nearest neighbours of a word in its context, and of its mean vector over contexts"
    ),
    "analyze similarity": Command(
        "analyze_similarity", "correlate cosines of words with human judgements of similarity, in each layer"
    ),
    "entities": Command("entities", "list the names that a text repeats, with a vector of each, for ERNIE with entities"),
    "ablate": Command("ablate", "compare recipes at an equal budget, with several seeds, and say what the study decides"),
    "fill": Command("fill", "fill the [MASK]s of a text"),
    "generate": Command("generate", "generate text from prompts"),
    "checkpoints": Command("checkpoints", "list a run's checkpoints and verify them"),
    "merge": Command("merge", "merge checkpoints of one or several runs into one model, and score each on held-out text"),
    "prune": Command("prune", "remove attention heads, neurons, layers or weights from a trained model"),
    "quantize": Command("quantize", "make a quantised model folder: int8 or int4 in the place of float32"),
    "replay": Command("replay", "recompute an update of a run on permuted devices, to find a device that computes wrongly"),
    "report": Command(
        "report", "show a run, or several overlaid, on one HTML page: curves, configuration, time, memory, scores, checkpoints"
    ),
    "export": Command("export", "write a Hugging Face folder from a trained model"),
    "import": Command("import_", "make a model folder from a Hugging Face folder"),
    "doctor": Command("doctor", "check the installation: devices, libraries, extras, folders, and a small model that must learn"),
    "completion": Command("completion", "print the completion of commands and flags for bash or zsh"),
}


def load(name: str) -> ModuleType:
    """Import the module of a command."""
    return importlib.import_module(f"bertfam.commands.{COMMANDS[name].module}")


def parser_of(name: str, module: ModuleType) -> Parser:
    """Return the parser of a command's flags."""
    parser = Parser(
        prog=f"bertfam {name}",
        description=module.SUMMARY,
        epilog=f"example:\n{module.EXAMPLE.strip(chr(10))}" if hasattr(module, "EXAMPLE") else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    return parser


def call(name: str, words: Sequence[str]) -> int:
    """Run a command in this process, without flags of gin; return its exit status."""
    module = load(name)
    args = parser_of(name, module).parse_args(words)
    args.command_line = ("bertfam", *name.split(), *words)
    status: int = module.main(args)
    return status
