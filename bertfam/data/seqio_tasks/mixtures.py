"""Tasks and rates of a registered seqio mixture, read in a child process where this one must not import TensorFlow.

The child runs `python -m bertfam.data.seqio_tasks.mixtures`.
"""

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bertfam.data.parallel.child_answers import answer, ask
from bertfam.data.seqio_tasks.corpus import fill_registry
from bertfam.errors import UserError

if TYPE_CHECKING:
    import seqio

Rates = dict[str, float]
_LONGEST = 255  # characters of a name


def find_rates(name: str, modules: Sequence[str], *, in_child: bool) -> Rates | None:
    """Return the rate of each task of a registered mixture, by the task's name; None if no mixture has this name.

    Args:
      name: the name in the registry.
      modules: modules to import first, which register the mixture and its tasks.
      in_child: ask a child process, unless this one has imported seqio already.

    Raises:
      UserError: a module cannot be imported, a rate cannot be computed, or `name` cannot be a name.
      SystemExit: the child failed; it has printed the reason.
    """
    if not name.isprintable() or len(name) > _LONGEST:
        raise UserError(f"--task={name!a} cannot be the name of a task or mixture: give the name that a module registers")
    if not in_child or "seqio" in sys.modules:
        return _read_rates(name, modules)
    rates: Rates | None = ask(__name__, (name, tuple(modules)))
    return rates


def _read_rates(name: str, modules: Sequence[str]) -> Rates | None:
    fill_registry(modules)
    import seqio

    if name not in seqio.MixtureRegistry.names():
        return None
    mixture = seqio.MixtureRegistry.get(name)
    # As in seqio, a task without this split or with the rate 0 gives no rows.
    rates = {task.name: _rate(mixture, task) for task in mixture.tasks if "train" in task.splits}
    rates = {task: rate for task, rate in rates.items() if rate}
    if not rates:
        raise UserError(f"--task={name}: no task of this mixture has both a train split and a rate above 0")
    return rates


def _rate(mixture: "seqio.Mixture", task: "seqio.Task") -> float:
    try:
        rate = float(mixture.get_rate(task))
    except Exception as error:  # a function of the user's module may raise anything
        summary = next(iter(str(error).splitlines()), "")[:300]
        raise UserError(
            f"--task={mixture.name}: the rate of task {task.name} cannot be computed ({type(error).__name__}: {summary}); "
            "register the mixture with numbers, or name one of its tasks"
        ) from error
    if not 0 <= rate < math.inf:
        raise UserError(f"--task={mixture.name}: the rate of task {task.name} is {rate}: it must be a number of at least 0")
    return rate


if __name__ == "__main__":
    answer(lambda request: _read_rates(*request))
