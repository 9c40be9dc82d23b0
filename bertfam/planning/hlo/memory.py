"""Memory of a device that a compiled program uses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from bertfam.planning.hlo.allocations import parse_out_of_memory
from bertfam.training.run_plan import local_bytes
from bertfam.training.state import TrainState


@dataclass(frozen=True)
class Memory:
    """Bytes of one device while a program runs.

    Attributes:
      parameters: parameters of the model.
      optimizer: optimizer state and moving average of the parameters, which stay in memory during evaluation too.
      batch: rows of one step.
      gradients: estimate: the size of the parameters, times the number of copies.
      temporaries: other allocations of the program: activations, gathered parameters, the compiler's copies.
      code: the program itself, which TPUs keep in the same memory.
      other: the rest: the objective's carry and aux, results outside the state, padding of layouts.
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
        """Bytes that must fit into the device's memory."""
        return sum(vars(self).values())


def memory(
    compiled: jax.stages.Compiled, state: TrainState, batch: Mapping[str, jax.ShapeDtypeStruct], *, gradients: int = 1
) -> Memory:
    """Return the memory that a compiled step uses.

    The total is the size of the compiler's buffers: arguments, results that do not reuse an argument's buffer, temporaries,
    code. The compiler's `peak_memory_in_bytes` is not used, because its meaning depends on the platform: on CPUs it lacks the
    temporaries.

    Args:
      compiled: the program.
      state: `jax.ShapeDtypeStruct`s with shardings; `opt_state` and `average` are empty for a program that has only parameters.
      batch: `jax.ShapeDtypeStruct`s with shardings.
      gradients: number of copies held at once: 1; 2 with microbatches (the sum and that of a microbatch); 0 for an evaluation.
    """
    analysis = compiled.memory_analysis()
    if analysis is None:
        raise ValueError("this platform's compiler does not report the memory of a program")
    parameters, rows = _bytes(state.params), _bytes(batch)
    optimizer = _bytes((state.opt_state, state.average))
    estimate = min(gradients * parameters, analysis.temp_size_in_bytes)
    arguments = analysis.argument_size_in_bytes
    results = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return Memory(
        parameters=parameters,
        optimizer=optimizer,
        batch=rows,
        gradients=estimate,
        temporaries=analysis.temp_size_in_bytes - estimate,
        code=analysis.generated_code_size_in_bytes,
        other=max(0, arguments + results - parameters - optimizer - rows),  # a program drops arguments that it does not read
    )


def memory_of_too_large(
    message: str, state: TrainState, batch: Mapping[str, jax.ShapeDtypeStruct], *, limit: int, gradients: int = 1
) -> Memory:
    """Return the memory of a program that does not fit, from the compiler's message.

    Args:
      message: message of the compiler, which has the total; all but parameters, optimizer, batch and gradients counts as
        temporaries.
      state: as in `memory`.
      batch: as in `memory`.
      limit: bytes that a device has; the total is one byte more if the message has none.
      gradients: as in `memory`.
    """
    parameters, rows = _bytes(state.params), _bytes(batch)
    optimizer = _bytes((state.opt_state, state.average))
    required, _ = parse_out_of_memory(message) or (limit + 1, limit)
    rest = max(0, required - parameters - optimizer - rows)
    estimate = min(gradients * parameters, rest)
    return Memory(parameters, optimizer, rows, estimate, temporaries=rest - estimate, code=0, other=0)


def _bytes(tree: Any) -> int:
    return sum(map(local_bytes, jax.tree.leaves(tree)))
