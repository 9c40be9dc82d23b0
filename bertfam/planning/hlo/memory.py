"""What a compiled program needs of a device's memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from bertfam.planning.hlo.allocations import too_large
from bertfam.training.state import TrainState
from bertfam.training.summary import local_bytes


@dataclass(frozen=True)
class Memory:
    """Bytes of one device while a program runs.

    Attributes:
      parameters: of the model.
      optimizer: the optimizer's state and the parameters' moving average, which stay there while a run evaluates, too.
      batch: the rows of one step.
      gradients: an estimate: as the parameters, for each copy that is kept.
      temporaries: what else the program allocates: activations, gathered parameters, the compiler's copies.
      code: the program itself, which TPUs keep in the same memory.
      other: all else: what the objective carries or reads, results that are no part of the state, the padding of layouts.
    """

    parameters: int
    optimizer: int
    batch: int
    gradients: int
    temporaries: int
    code: int
    other: int

    @property
    def total(self) -> int:
        """What must fit into the device's memory."""
        return sum(vars(self).values())


def memory(
    compiled: jax.stages.Compiled, state: TrainState, batch: Mapping[str, jax.ShapeDtypeStruct], *, gradients: int = 1
) -> Memory:
    """What a compiled step needs.

    The total is that of the compiler's buffers: arguments, results that take no argument's place, temporaries, code. Its own
    `peak_memory_in_bytes` is another thing on each platform: on CPUs it lacks the temporaries.

    Args:
      compiled: the program.
      state: as `jax.ShapeDtypeStruct`s with shardings; with an empty `opt_state` and `average` for a program that has only
        parameters.
      batch: as `jax.ShapeDtypeStruct`s with shardings.
      gradients: how many copies are kept at once: 1, in microbatches 2 (the sum, and that of a piece), 0 for an evaluation.
    """
    told = compiled.memory_analysis()
    if told is None:
        raise ValueError("this platform's compiler does not tell what memory a program needs")
    parameters, rows = _bytes(state.params), _bytes(batch)
    optimizer = _bytes((state.opt_state, state.average))
    estimate = min(gradients * parameters, told.temp_size_in_bytes)
    arguments = told.argument_size_in_bytes
    results = told.output_size_in_bytes - told.alias_size_in_bytes
    return Memory(
        parameters=parameters,
        optimizer=optimizer,
        batch=rows,
        gradients=estimate,
        temporaries=told.temp_size_in_bytes - estimate,
        code=told.generated_code_size_in_bytes,
        other=max(0, arguments + results - parameters - optimizer - rows),  # a program leaves out arguments that it does not read
    )


def memory_of_too_large(
    message: str, state: TrainState, batch: Mapping[str, jax.ShapeDtypeStruct], *, limit: int, gradients: int = 1
) -> Memory:
    """What a program needs that the compiler found too large; see `memory`.

    Args:
      message: the compiler's, whose total is taken: what is no parameter, optimizer, batch or gradient counts as temporaries.
      state: as there.
      batch: as there.
      limit: bytes that a device has, of which it needs one more at the least where the message does not say how many.
      gradients: as there.
    """
    parameters, rows = _bytes(state.params), _bytes(batch)
    optimizer = _bytes((state.opt_state, state.average))
    needed, _ = too_large(message) or (limit + 1, limit)
    rest = max(0, needed - parameters - optimizer - rows)
    estimate = min(gradients * parameters, rest)
    return Memory(parameters, optimizer, rows, estimate, temporaries=rest - estimate, code=0, other=0)


def _bytes(tree: Any) -> int:
    return sum(map(local_bytes, jax.tree.leaves(tree)))
