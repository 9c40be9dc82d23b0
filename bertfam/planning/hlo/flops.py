"""FLOPs of the matrix products of an HLO program. TPU programs write them as convolutions, batch axes as dilated windows.

`compiled.cost_analysis()` (jax 0.10.2) has one number for a program, in which a loop counts once.
"""

import math
import re

from bertfam.planning.hlo.text import Computation, Instruction, Program, called, sizes_of, trip_count

_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_BATCH_GROUPS = re.compile(r"batch_group_count=(\d+)")


def product_flops(program: Program, computation: Computation, instruction: Instruction) -> int:
    """Return the FLOPs of the products that an instruction of a computation runs, those of loops of unknown length once.

    Programs within a custom call, such as kernels of our own, do not count.
    """
    if instruction.opcode in ("dot", "convolution"):
        left, right = (sizes_of(computation.instructions[name].shape) for name in instruction.operands[:2])
        result = sizes_of(instruction.shape)
        if instruction.opcode == "dot":
            contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
            axes = [int(axis) for axis in contracted[1].split(",") if axis] if contracted else []
            return 2 * math.prod(result) * math.prod(left[axis] for axis in axes)
        return _convolution(instruction.attributes, left, right, result)
    if instruction.opcode == "while":
        body = program.computations[instruction.attribute("body") or ""]
        return (trip_count(program, computation, instruction) or 1) * flops_of(program, body)
    if instruction.opcode in ("fusion", "call", "conditional", "async-start"):
        return sum(flops_of(program, program.computations[name]) for name in called(instruction))
    return 0


def flops_of(program: Program, computation: Computation) -> int:
    """Return the FLOPs of the products of a computation."""
    return sum(product_flops(program, computation, instruction) for instruction in computation)


def _convolution(attributes: str, left: list[int], right: list[int], result: list[int]) -> int:
    """Count the multiplications that meet a value of the left operand, not its padding or dilation."""
    labels = _LABELS.search(attributes)
    assert labels is not None, attributes
    of_left, of_right, of_result = labels.groups()
    window = _WINDOW.search(attributes)
    fields = dict(part.split("=") for part in window[1].split()) if window else {}
    count = 1
    for number, place in enumerate(sorted(letter for letter in of_right if letter.isdigit())):
        size, stride, dilation, right_dilation = (
            int(fields[name].split("x")[number]) if name in fields else 1
            for name in ("size", "stride", "lhs_dilate", "rhs_dilate")
        )
        low = int(fields["pad"].split("x")[number].split("_")[0]) if "pad" in fields else 0
        last = (left[of_left.index(place)] - 1) * dilation
        count *= sum(
            0 <= (position := step * stride + tap * right_dilation - low) <= last and position % dilation == 0
            for step in range(result[of_result.index(place)])
            for tap in range(size)
        )
    groups = _BATCH_GROUPS.search(attributes)
    inputs, outputs = right[of_right.index("i")], right[of_right.index("o")]
    return 2 * count * left[of_left.index("b")] * inputs * outputs // (int(groups[1]) if groups else 1)
