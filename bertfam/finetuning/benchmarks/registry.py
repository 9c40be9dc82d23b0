"""Table of benchmark tasks; a module of --module_import adds its own by `register`."""

from collections.abc import Sequence

from bertfam.data.corpora.corpus import Corpus
from bertfam.errors import UserError
from bertfam.finetuning.benchmarks import glue, minimal_pairs, super_glue, words_and_answers
from bertfam.finetuning.benchmarks.task import BenchmarkTask
from bertfam.suggest import did_you_mean

_TASKS: dict[str, BenchmarkTask] = {}


def register(task: BenchmarkTask) -> BenchmarkTask:
    """Add a task to the table and return it; raise UserError if its name is not SUITE/TASK or belongs to another task."""
    if task.name.count("/") != 1 or not all(task.name.split("/")):
        raise UserError(f"BenchmarkTask.name is {task.name!r}: write SUITE/TASK, as in glue/cola")
    if _TASKS.setdefault(task.name, task) != task:
        raise UserError(f"BenchmarkTask.name is {task.name!r}, and another task has that name; choose one of your own")
    return task


def find(name: str) -> BenchmarkTask:
    """Return the task of a name, SUITE/TASK, or TASK where only one suite has it; raise UserError if there is none."""
    matches = [name] if name in _TASKS else [known for known in _TASKS if known.partition("/")[2] == name]
    if not matches:
        raise UserError(f"--task_name={name}: no such task{did_you_mean(name, _TASKS, 'one of ' + ', '.join(_TASKS))}")
    if len(matches) > 1:
        raise UserError(f"--task_name={name} is a task of two suites: write {' or '.join(matches)}")
    return _TASKS[matches[0]]


def suites() -> list[str]:
    """Return the names of the suites."""
    return list(dict.fromkeys(task.suite for task in _TASKS.values()))


def of_suite(suite: str) -> Sequence[BenchmarkTask]:
    """Return the tasks of a suite, in the order in which they were registered."""
    return [task for task in _TASKS.values() if task.suite == suite]


def of_corpus(corpus: Corpus | None) -> Sequence[BenchmarkTask]:
    """Return the tasks whose published files a corpus reads."""
    return [task for task in _TASKS.values() if task.is_read_by(corpus)]


for _task in (*glue.TASKS, *super_glue.TASKS, *words_and_answers.TASKS, *minimal_pairs.TASKS):
    register(_task)
