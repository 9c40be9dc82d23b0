"""Largest arrays in a device's memory, from the compiler's dump of a program, including a program that does not fit.

`compiled.memory_analysis().serialized_buffer_assignment_proto` (jaxlib 0.10.2) was considered. It has no Python schema without
TensorFlow (see `bertfam.planning.hlo.text`), and a program that does not fit has no `compiled`.
"""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bertfam.planning.hlo.text import Computation, Program, Scope, follow, parse

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)B?"
# Messages of the TPU compiler about a program that does not fit.
_TOO_LARGE = (
    re.compile(rf"memory required for HLO temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
)
_ALLOCATION = re.compile(r"^allocation \d+: size \d+,.* preallocated-temp:")
_VALUE = re.compile(r"^ value: <\d+ ([\w.-]+)(?:\{(\d+)\})?.*@0> \(size=(\d+),offset=(\d+)\): (\S+?)(?:\{.*)?$")
# Parts of an op_name: wrappers around a module's name, and names that are not modules.
_WRAPPER = re.compile(r"^(?:jit|jvp|transpose|vmap|checkpoint|remat|custom_vjp|custom_jvp)\((.*)\)$")
_NOT_A_MODULE = re.compile(
    r"while|body|cond|closed_call|core_call|checkpoint|rematted_computation|remat2?|scan|pjit|shard_map|"
    r"custom_(?:jvp|vjp)_call(?:_jaxpr)?|branch_\d+_fun|.*\._.*|.*->.*|"
)


@dataclass(frozen=True)
class Allocation:
    """Allocation in a device's memory.

    Attributes:
      bytes: size, including the padding of the layout.
      shape: shape of the array, such as "f32[8,144,128,4096]"; other arrays may use the allocation before or after it.
      where: module that computes it (see `module`); "" if the compiler does not record it.
    """

    bytes: int
    shape: str
    where: str


@dataclass
class Dump:
    """Folder with the compiler's dump of a program.

    Attributes:
      options: options for `lowered.compile(compiler_options=...)`.
    """

    folder: Path
    options: dict[str, str | bool] = field(init=False)

    def __post_init__(self) -> None:
        self.options = {"xla_dump_to": str(self.folder), "xla_dump_hlo_as_text": True}

    def largest(self, count: int = 10) -> list[Allocation]:
        """Return the largest temporary allocations, the largest first; [] if the program came from the compilation cache."""
        path = self._program()
        if path is None:
            return []
        program = parse(path.read_text())
        computation_of = {
            instruction.name: computation for computation in program.computations.values() for instruction in computation
        }
        allocations: dict[tuple[int, int], Allocation] = {}
        for name, element, size, offset, shape in _values(self._buffers(path).read_text()):
            allocation = Allocation(size, shape, module(_producer(program, computation_of[name], name, element)))
            # Several values may share an allocation; keep the one whose module has the longest path.
            candidates = (allocations.get((size, offset), allocation), allocation)
            allocations[size, offset] = max(*candidates, key=lambda candidate: candidate.where.count("/"))
        return sorted(allocations.values(), key=lambda allocation: -allocation.bytes)[:count]

    @property
    def text(self) -> str:
        """The optimized HLO text; "" if the program came from the compilation cache."""
        path = self._program()
        return "" if path is None else path.read_text()

    def _program(self) -> Path | None:
        files = (path for path in self.folder.glob("*after_optimizations.txt") if self._buffers(path).exists())
        return max(files, key=lambda path: path.stat().st_size, default=None)

    @staticmethod
    def _buffers(program: Path) -> Path:
        return program.with_name(f"{program.stem}-buffer-assignment.txt")


@contextmanager
def temporary_dump() -> Iterator[Dump]:
    """Provide a `Dump` in a folder that is removed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        yield Dump(Path(folder))


def parse_out_of_memory(message: str) -> tuple[int, int] | None:
    """Return the required and the available bytes from the compiler's message; None if it is about something else."""
    for pattern in _TOO_LARGE:
        if match := pattern.search(message):
            required, required_unit, limit, limit_unit = match.groups()
            return int(float(required) * _UNITS[required_unit]), int(float(limit) * _UNITS[limit_unit])
    return None


def module(op_name: str) -> str:
    """Return the position of an operation in the model: "Encoder/layers/attention/output, backward: dot_general".

    Args:
      op_name: op_name of HLO's metadata:
        "jit(train_step)/transpose(jvp(Encoder))/layers/while/body/attention/output/dot_general".
    """
    backward = "transpose(" in op_name
    parts: list[str] = []
    for part in op_name.split("/")[1:]:
        while match := _WRAPPER.match(part):
            part = match[1] if not part.startswith("jit(") else ""
        if not _NOT_A_MODULE.fullmatch(part) and parts[-1:] != [part]:
            parts.append(part)
    if not parts:
        return op_name
    *path, operation = parts
    return f"{'/'.join(path)}{', backward' if backward else ''}: {operation}" if path else operation


def _producer(program: Program, computation: Computation, name: str, element: int | None) -> str:
    """Return the op_name of the instruction that produces a value; for an array that a loop fills, of the inserted value."""
    source, scope = follow(program, Scope(computation), name)
    if source.opcode == "tuple" and element is not None:
        source, scope = follow(program, scope, source.operands[element])
    while source.opcode == "dynamic-update-slice":
        source, scope = follow(program, scope, source.operands[1])
    return source.op_name or computation.instructions[name].op_name


def _values(text: str) -> Iterator[tuple[str, int | None, int, int, str]]:
    """Yield instruction, tuple element, size, offset and shape of each value in a program's temporary allocations."""
    temporary = False
    for line in text.splitlines():
        if line.startswith("allocation"):
            temporary = bool(_ALLOCATION.match(line))
        elif temporary and (match := _VALUE.match(line)):
            yield match[1], None if match[2] is None else int(match[2]), int(match[3]), int(match[4]), match[5]
