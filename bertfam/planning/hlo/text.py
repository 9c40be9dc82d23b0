"""Parser for the text of a compiled program (optimized HLO): computations, sizes of arrays, trip counts of loops.

HLO protos were considered. jaxlib 0.10.2 serializes them (`HloModule.as_serialized_hlo_module_proto`), but ships no Python
schema to read them; the only `hlo_pb2` installed is inside TensorFlow, which this process must not import. jaxlib's own
`HloModule.computations` have the names, opcodes and operands of instructions, but neither shapes, attributes nor op_names. Text
is also available for every program: JAX cannot read some TPU programs back from the compiler, and a program that does not fit
exists only as a dump.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.-]+) = (.*)$")
_COMMENT = re.compile(r"/\*.*?\*/")
_ELEMENT = re.compile(r"%([\w.-]+)((?:#\d+)+)")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\]")
# Computations that an instruction calls.
_CALLED = re.compile(r"\b(?:calls|to_apply|true_computation|false_computation)=%?([\w.-]+)|branch_computations=\{([^}]*)\}")
# Operations that return the value of their first operand.
_SAME = frozenset({"copy", "copy-start", "copy-done", "bitcast", "convert", "reshape", "optimization-barrier"})


@dataclass(frozen=True)
class Instruction:
    """Instruction `name = shape opcode(operands), attributes`; the shape includes its layout."""

    name: str
    shape: str
    opcode: str
    inside: str
    attributes: str

    @property
    def operands(self) -> list[str]:
        """Names of the operands."""
        return re.findall(r"%([\w.#-]+)", self.inside)

    @property
    def op_name(self) -> str:
        """Position in the Python program, such as "jit(train_step)/jvp(Bert)/encoder/..."; "" if it is not recorded."""
        match = re.search(r'op_name="([^"]*)"', self.attributes)
        return match[1] if match else ""

    def attribute(self, name: str) -> str | None:
        """Return the computation or number after `name=`."""
        match = re.search(rf"\b{name}=%?([\w.-]+)", self.attributes)
        return match[1] if match else None


@dataclass
class Computation:
    """Computation: instructions by name, in the order of the text."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)
    root: str = ""

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions.values())


@dataclass(frozen=True)
class Program:
    """HLO module: computations by name, and the name of the entry computation."""

    computations: dict[str, Computation]
    entry: str


def parse(text: str) -> Program:
    """Parse the text from `compiled.as_text()`."""
    computations: dict[str, Computation] = {}
    entry, current = "", Computation("")
    for line in text.splitlines():
        if match := _INSTRUCTION.match(line):
            shape, rest = _split_shape(_COMMENT.sub("", match[3]))
            opcode, _, rest = rest.partition("(")
            inside, attributes = _split_at_close(rest)
            _add_elements(current, inside)
            current.instructions[match[2]] = Instruction(match[2], shape, opcode, inside, attributes)
            if match[1]:
                current.root = match[2]
        elif match := _COMPUTATION.match(line):
            current = computations[match[2]] = Computation(match[2])
            entry = match[2] if match[1] else entry
    return Program(computations, entry)


def _add_elements(computation: Computation, inside: str) -> None:
    """Add instructions for tuple elements, which newer compilers write only where they are used: `%tuple#1`, `%tuple#1#0`."""
    for name, indices in _ELEMENT.findall(inside):
        for index in indices[1:].split("#"):
            whole, name = computation.instructions[name], f"{name}#{index}"
            computation.instructions[name] = Instruction(
                name, parts(whole.shape)[int(index)], "get-tuple-element", f"%{whole.name}", f", index={index}"
            )


def parts(shape: str) -> list[str]:
    """Return the shapes of a tuple's elements; for another shape, the shape itself."""
    if not shape.startswith("("):
        return [shape]
    result, depth, start = [], 0, 1
    for place, letter in enumerate(shape):
        depth += (letter in "({[") - (letter in ")}]")
        if (letter == "," and depth == 1) or (depth == 0 and place > start):
            result.append(shape[start:place].strip())
            start = place + 1
    return result


def size(shape: str) -> int:
    """Return the bytes of all arrays of a shape, without the padding of layouts; two 4-bit values take a byte."""
    return sum(
        -(-math.prod(int(size) for size in sizes.replace("<=", "").split(",") if size) * bits(dtype) // 8)
        for dtype, sizes in _ARRAY.findall(shape)
    )


def sizes_of(shape: str) -> list[int]:
    """Return the sizes of the axes of an array."""
    match = _ARRAY.match(shape)
    return [int(size) for size in match[2].replace("<=", "").split(",") if size] if match else []


def called(instruction: Instruction) -> list[str]:
    """Return the names of the computations that an instruction calls; those of a loop are its attributes."""
    matches = _CALLED.findall(instruction.attributes)
    return [name for one, several in matches for name in ([one] if one else re.findall(r"[\w.-]+", several))]


def bits(dtype: str) -> int:
    """Return the bits of one value: 16 for "bf16", 8 for "f8e4m3fn" and "pred", 0 for "token"."""
    match = re.match(r"(?:bf|f|s|u|c)(\d+)", dtype)
    return 8 if dtype == "pred" else int(match[1]) if match else 0


@dataclass(frozen=True)
class Scope:
    """Computation, and the arguments of its call if it is the computation of a fusion."""

    computation: Computation
    arguments: tuple[str, ...] = ()
    outer: "Scope | None" = None


def follow(program: Program, scope: Scope, name: str) -> tuple[Instruction, Scope]:
    """Follow a value to its source, through copies, tuples and fusions; return the instruction and its scope."""
    source = scope.computation.instructions[name]
    if source.opcode in _SAME:
        return follow(program, scope, source.operands[0])
    if source.opcode == "fusion":
        inner = program.computations[source.attribute("calls") or ""]
        return follow(program, Scope(inner, tuple(source.operands), scope), inner.root)
    if source.opcode == "parameter" and scope.outer is not None:
        return follow(program, scope.outer, scope.arguments[int(source.inside)])
    if source.opcode == "get-tuple-element":
        whole, inner_scope = follow(program, scope, source.operands[0])
        if whole.opcode == "tuple":
            return follow(program, inner_scope, whole.operands[int(source.attribute("index") or 0)])
    return source, scope


def trip_count(program: Program, caller: Computation, loop: Instruction) -> int | None:
    """Return the number of iterations of a `while` of `caller`; None if it is decided at run time.

    The compiler may have recorded the number. TPU programs have no such record; there it follows from a counter that starts at a
    constant, grows by a constant and is compared with a constant.
    """
    if recorded := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes):
        return int(recorded[1])
    condition = program.computations[loop.attribute("condition") or ""]
    body = program.computations[loop.attribute("body") or ""]
    test, scope = follow(program, Scope(condition), condition.root)
    if test.opcode != "compare" or len(test.operands) != 2:
        return None
    left, right = (follow(program, scope, name) for name in test.operands)
    direction = test.attribute("direction") or ""
    if left[0].opcode == "constant":
        left, right, direction = right, left, {"GT": "LT", "GE": "LE"}.get(direction, "")
    counter, bound, limit = _element(program, *left), _element(program, *right), _number(right[0])
    start, step = _initial_value(program, caller, loop, counter), _increment(program, body, counter)
    if limit is None:
        limit = _initial_value(program, caller, loop, bound) if _increment(program, body, bound) == 0 else None
    if start is None or limit is None or not step or step < 0 or direction not in ("LT", "LE"):
        return None
    return max(0, -(-(limit + (direction == "LE") - start) // step))


def _number(instruction: Instruction) -> int | None:
    whole = re.fullmatch(r"-?\d+", instruction.inside)
    return int(whole[0]) if instruction.opcode == "constant" and whole else None


def _element(program: Program, instruction: Instruction, scope: Scope) -> int | None:
    """Return the index of an element of the loop state, the parameter of a loop's condition or body; None for other values."""
    if instruction.opcode != "get-tuple-element" or follow(program, scope, instruction.operands[0])[0].opcode != "parameter":
        return None
    return int(instruction.attribute("index") or 0)


def _initial_value(program: Program, caller: Computation, loop: Instruction, index: int | None) -> int | None:
    """Return the constant at which an element of the loop state starts."""
    state, scope = follow(program, Scope(caller), loop.operands[0])
    if index is None or state.opcode != "tuple":
        return None
    return _number(follow(program, scope, state.operands[index])[0])


def _increment(program: Program, body: Computation, index: int | None) -> int | None:
    """Return the constant by which an element of the loop state grows in every iteration."""
    state, scope = follow(program, Scope(body), body.root)
    if index is None or state.opcode != "tuple":
        return None
    after, scope = follow(program, scope, state.operands[index])
    if _element(program, after, scope) == index:
        return 0
    if after.opcode != "add":
        return None
    terms = [follow(program, scope, name) for name in after.operands]
    numbers = [number for term, _ in terms if (number := _number(term)) is not None]
    return numbers[0] if len(numbers) == 1 and index in (_element(program, *term) for term in terms) else None


def _split_shape(text: str) -> tuple[str, str]:
    """Split a text after the shape that it starts with."""
    if not text.startswith("("):
        shape, _, rest = text.partition(" ")
        return shape, rest
    inside, rest = _split_at_close(text[1:])
    return f"({inside})", rest.lstrip()


def _split_at_close(text: str) -> tuple[str, str]:
    """Split a text at the closing parenthesis that matches an earlier opening one."""
    depth = 1
    for match in re.finditer(r"[()]", text):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return text[: match.start()], text[match.end() :]
    return text, ""
