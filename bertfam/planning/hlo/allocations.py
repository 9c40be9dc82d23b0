"""Which arrays take most of a device's memory, by what the compiler writes of a program, also of one that does not fit."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bertfam.planning.hlo.text import Computation, Program, Scope, follow, parse

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)B?"
# How the TPU compiler says that a program does not fit.
_TOO_LARGE = (
    re.compile(rf"memory required for HLO temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
)
_ALLOCATION = re.compile(r"^allocation \d+: size \d+,.* preallocated-temp:")
_VALUE = re.compile(r"^ value: <\d+ ([\w.-]+)(?:\{(\d+)\})?.*@0> \(size=(\d+),offset=(\d+)\): (\S+?)(?:\{.*)?$")
# Of the name of a place in a program: what stands around a module's name, and what is no module.
_AROUND = re.compile(r"^(?:jit|jvp|transpose|vmap|checkpoint|remat|custom_vjp|custom_jvp)\((.*)\)$")
_NO_MODULE = re.compile(
    r"while|body|cond|closed_call|core_call|checkpoint|rematted_computation|remat2?|scan|pjit|shard_map|"
    r"custom_(?:jvp|vjp)_call(?:_jaxpr)?|branch_\d+_fun|.*\._.*|.*->.*|"
)


@dataclass(frozen=True)
class Allocation:
    """A place in a device's memory.

    Attributes:
      bytes: with the padding of its layout.
      shape: of the array in it, as "f32[8,144,128,4096]"; others may use the place before or after.
      where: the module that makes it (see `module`); "" where the compiler does not tell.
    """

    bytes: int
    shape: str
    where: str


@dataclass
class Dump:
    """What the compiler writes of a program, in a folder.

    Attributes:
      options: for `lowered.compile(compiler_options=...)`.
    """

    folder: Path
    options: dict[str, str | bool] = field(init=False)

    def __post_init__(self) -> None:
        self.options = {"xla_dump_to": str(self.folder), "xla_dump_hlo_as_text": True}

    def largest(self, count: int = 10) -> list[Allocation]:
        """The largest places for temporaries, the largest first; none where the program came from a cache of compilations."""
        path = self._program()
        if path is None:
            return []
        program = parse(path.read_text())
        homes = {made.name: computation for computation in program.computations.values() for made in computation}
        found: dict[tuple[int, int], Allocation] = {}
        for name, element, size, offset, shape in _values(self._buffers(path).read_text()):
            made = Allocation(size, shape, module(_maker(program, homes[name], name, element)))
            # Of all that use the place, what is told most precisely.
            found[size, offset] = max(found.get((size, offset), made), made, key=lambda each: each.where.count("/"))
        return sorted(found.values(), key=lambda each: -each.bytes)[:count]

    @property
    def text(self) -> str:
        """The optimised program; "" where it came from a cache of compilations."""
        path = self._program()
        return "" if path is None else path.read_text()

    def _program(self) -> Path | None:
        files = (path for path in self.folder.glob("*after_optimizations.txt") if self._buffers(path).exists())
        return max(files, key=lambda path: path.stat().st_size, default=None)

    @staticmethod
    def _buffers(program: Path) -> Path:
        return program.with_name(f"{program.stem}-buffer-assignment.txt")


@contextmanager
def dumped() -> Iterator[Dump]:
    """A `Dump` in a folder that is removed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        yield Dump(Path(folder))


def too_large(message: str) -> tuple[int, int] | None:
    """The bytes that a program needs and those that there are, of the compiler's message; None where it says another thing."""
    for pattern in _TOO_LARGE:
        if found := pattern.search(message):
            needed, needed_unit, limit, limit_unit = found.groups()
            return int(float(needed) * _UNITS[needed_unit]), int(float(limit) * _UNITS[limit_unit])
    return None


def module(op_name: str) -> str:
    """Where in the model an operation is: "Encoder/layers/attention/output, backward: dot_general".

    Args:
      op_name: of HLO's metadata: "jit(train_step)/transpose(jvp(Encoder))/layers/while/body/attention/output/dot_general".
    """
    backward = "transpose(" in op_name
    parts: list[str] = []
    for part in op_name.split("/")[1:]:
        while found := _AROUND.match(part):
            part = found[1] if not part.startswith("jit(") else ""
        if not _NO_MODULE.fullmatch(part) and parts[-1:] != [part]:
            parts.append(part)
    if not parts:
        return op_name
    *path, operation = parts
    return f"{'/'.join(path)}{', backward' if backward else ''}: {operation}" if path else operation


def _maker(program: Program, home: Computation, name: str, element: int | None) -> str:
    """The op_name of what makes a value: of arrays that a loop fills, of what it fills them with."""
    found, scope = follow(program, Scope(home), name)
    if found.opcode == "tuple" and element is not None:
        found, scope = follow(program, scope, found.operands[element])
    while found.opcode == "dynamic-update-slice":
        found, scope = follow(program, scope, found.operands[1])
    return found.op_name or home.instructions[name].op_name


def _values(text: str) -> Iterator[tuple[str, int | None, int, int, str]]:
    """The instruction, the element of its tuple, size, offset and shape of the values in a program's temporaries."""
    temporary = False
    for line in text.splitlines():
        if line.startswith("allocation"):
            temporary = bool(_ALLOCATION.match(line))
        elif temporary and (found := _VALUE.match(line)):
            yield found[1], None if found[2] is None else int(found[2]), int(found[3]), int(found[4]), found[5]
