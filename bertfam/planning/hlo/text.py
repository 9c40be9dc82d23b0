"""The text of a compiled program (optimised HLO): its computations, the sizes of its arrays, how often its loops turn."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.-]+) = (.*)$")
_COMMENT = re.compile(r"/\*.*?\*/")
_ELEMENT = re.compile(r"%([\w.-]+)((?:#\d+)+)")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\]")
# What hands on its first operand's value.
_SAME = frozenset({"copy", "copy-start", "copy-done", "bitcast", "convert", "reshape", "optimization-barrier"})


@dataclass(frozen=True)
class Instruction:
    """`name = shape opcode(operands), attributes`; the shape as written, with its layout."""

    name: str
    shape: str
    opcode: str
    inside: str
    attributes: str

    @property
    def operands(self) -> list[str]:
        """The names of what it reads."""
        return re.findall(r"%([\w.#-]+)", self.inside)

    @property
    def op_name(self) -> str:
        """Where in the Python program it comes from, as "jit(train_step)/jvp(Bert)/encoder/..."; "" where that is not told."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found[1] if found else ""

    def attribute(self, name: str) -> str | None:
        """The computation or number after `name=`."""
        found = re.search(rf"\b{name}=%?([\w.-]+)", self.attributes)
        return found[1] if found else None


@dataclass
class Computation:
    """Instructions by name, in the order of the text."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)
    root: str = ""

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions.values())


@dataclass(frozen=True)
class Program:
    """A module: computations by name, and the one that the program begins with."""

    computations: dict[str, Computation]
    entry: str


def parse(text: str) -> Program:
    """Reads `compiled.as_text()`."""
    computations: dict[str, Computation] = {}
    entry, current = "", Computation("")
    for line in text.splitlines():
        if found := _INSTRUCTION.match(line):
            shape, rest = _split(_COMMENT.sub("", found[3]))
            opcode, _, rest = rest.partition("(")
            inside, attributes = _closed(rest)
            _add_elements(current, inside)
            current.instructions[found[2]] = Instruction(found[2], shape, opcode, inside, attributes)
            if found[1]:
                current.root = found[2]
        elif found := _COMPUTATION.match(line):
            current = computations[found[2]] = Computation(found[2])
            entry = found[2] if found[1] else entry
    return Program(computations, entry)


def _add_elements(computation: Computation, inside: str) -> None:
    """Instructions for elements of tuples, which newer compilers write where they are used alone, `%tuple#1` or `%tuple#1#0`."""
    for name, indices in _ELEMENT.findall(inside):
        for index in indices[1:].split("#"):
            whole, name = computation.instructions[name], f"{name}#{index}"
            computation.instructions[name] = Instruction(
                name, parts(whole.shape)[int(index)], "get-tuple-element", f"%{whole.name}", f", index={index}"
            )


def parts(shape: str) -> list[str]:
    """The elements of a tuple's shape; the shape itself where it is no tuple."""
    if not shape.startswith("("):
        return [shape]
    result, depth, begin = [], 0, 1
    for place, letter in enumerate(shape):
        depth += (letter in "({[") - (letter in ")}]")
        if (letter == "," and depth == 1) or (depth == 0 and place > begin):
            result.append(shape[begin:place].strip())
            begin = place + 1
    return result


def size(shape: str) -> int:
    """The bytes of all arrays of a shape, without the padding of layouts; values of 4 bits are two to a byte."""
    return sum(
        -(-math.prod(int(size) for size in sizes.replace("<=", "").split(",") if size) * bits(dtype) // 8)
        for dtype, sizes in _ARRAY.findall(shape)
    )


def bits(dtype: str) -> int:
    """Of one value: 16 of "bf16", 8 of "f8e4m3fn" and of "pred", 0 of "token"."""
    found = re.match(r"(?:bf|f|s|u|c)(\d+)", dtype)
    return 8 if dtype == "pred" else int(found[1]) if found else 0


@dataclass(frozen=True)
class Scope:
    """A computation, and for the parameters of a fused one what it was called with."""

    computation: Computation
    arguments: tuple[str, ...] = ()
    outer: "Scope | None" = None


def follow(program: Program, scope: Scope, name: str) -> tuple[Instruction, Scope]:
    """Where a value comes from, through copies, tuples and fusions."""
    found = scope.computation.instructions[name]
    if found.opcode in _SAME:
        return follow(program, scope, found.operands[0])
    if found.opcode == "fusion":
        inner = program.computations[found.attribute("calls") or ""]
        return follow(program, Scope(inner, tuple(found.operands), scope), inner.root)
    if found.opcode == "parameter" and scope.outer is not None:
        return follow(program, scope.outer, scope.arguments[int(found.inside)])
    if found.opcode == "get-tuple-element":
        whole, inner_scope = follow(program, scope, found.operands[0])
        if whole.opcode == "tuple":
            return follow(program, inner_scope, whole.operands[int(found.attribute("index") or 0)])
    return found, scope


def trip_count(program: Program, caller: Computation, loop: Instruction) -> int | None:
    """How often a `while` of `caller` turns; None where the program decides that while it runs.

    It is what the compiler noted, or (programs for TPUs have no such note) what follows from a counter that begins at a constant,
    grows by a constant and is compared with a constant.
    """
    if noted := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes):
        return int(noted[1])
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
    begins, grows = _first(program, caller, loop, counter), _step(program, body, counter)
    if limit is None:
        limit = _first(program, caller, loop, bound) if _step(program, body, bound) == 0 else None
    if begins is None or limit is None or not grows or grows < 0 or direction not in ("LT", "LE"):
        return None
    return max(0, -(-(limit + (direction == "LE") - begins) // grows))


def _number(found: Instruction) -> int | None:
    whole = re.fullmatch(r"-?\d+", found.inside)
    return int(whole[0]) if found.opcode == "constant" and whole else None


def _element(program: Program, found: Instruction, scope: Scope) -> int | None:
    """Which element this is of the state that a loop's condition or body is given."""
    if found.opcode != "get-tuple-element" or follow(program, scope, found.operands[0])[0].opcode != "parameter":
        return None
    return int(found.attribute("index") or 0)


def _first(program: Program, caller: Computation, loop: Instruction, index: int | None) -> int | None:
    """The constant that an element of a loop's state begins with."""
    state, scope = follow(program, Scope(caller), loop.operands[0])
    if index is None or state.opcode != "tuple":
        return None
    return _number(follow(program, scope, state.operands[index])[0])


def _step(program: Program, body: Computation, index: int | None) -> int | None:
    """The constant by which an element of a loop's state grows at every turn."""
    state, scope = follow(program, Scope(body), body.root)
    if index is None or state.opcode != "tuple":
        return None
    after, scope = follow(program, scope, state.operands[index])
    if _element(program, after, scope) == index:
        return 0
    if after.opcode != "add":
        return None
    terms = [follow(program, scope, name) for name in after.operands]
    numbers = [number for found, _ in terms if (number := _number(found)) is not None]
    return numbers[0] if len(numbers) == 1 and index in (_element(program, *term) for term in terms) else None


def _split(text: str) -> tuple[str, str]:
    """A shape, and what comes after it."""
    if not text.startswith("("):
        shape, _, rest = text.partition(" ")
        return shape, rest
    inside, rest = _closed(text[1:])
    return f"({inside})", rest.lstrip()


def _closed(text: str) -> tuple[str, str]:
    """What stands before the parenthesis that closes, and what after it."""
    depth = 1
    for found in re.finditer(r"[()]", text):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return text[: found.start()], text[found.end() :]
    return text, ""
