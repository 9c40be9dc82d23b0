"""Tasks of tagged words and of questions: CoNLL-2003, WNUT-17, Universal Dependencies and SQuAD."""

from bertfam.data.corpora.labelled.question_files import QuestionFiles
from bertfam.data.corpora.labelled.tagged_files import TaggedFiles
from bertfam.finetuning.benchmarks.task import BenchmarkTask

_ENTITIES, _ANSWERS = ("f1", "precision", "recall"), ("f1", "exact")


def _conll(train: str, validation: str) -> TaggedFiles:
    """Return files with a word, its part of speech, its chunk and its entity in each line."""
    return TaggedFiles((f"conll2003/{train}",), (f"conll2003/{validation}",), "conll", "1", "4")


def _squad(version: str) -> BenchmarkTask:
    files = QuestionFiles((f"train-v{version}.json",), (f"dev-v{version}.json",))
    return BenchmarkTask(f"squad/v{version}", (files,), _ANSWERS)


TASKS = (
    _squad("1.1"),
    _squad("2.0"),
    BenchmarkTask(
        "ner/conll2003",  # Tjong Kim Sang and De Meulder 2003
        (_conll("eng.train", "eng.testa"), _conll("train.txt", "valid.txt")),
        _ENTITIES,
        further={"test": ("conll2003/eng.testb", "conll2003/test.txt")},
    ),
    BenchmarkTask(
        "ner/wnut17",  # Derczynski et al. 2017
        (TaggedFiles(("wnut17/wnut17train.conll",), ("wnut17/emerging.dev.conll",), "conll"),),
        _ENTITIES,
        further={"test": ("wnut17/emerging.test.annotated",)},
    ),
    BenchmarkTask(
        "pos/ud",  # a treebank of Universal Dependencies, whichever is in the folder
        (TaggedFiles(("*-train.conllu",), ("*-dev.conllu",), "conllu"),),
        ("accuracy",),
    ),
)
