"""Collectives of HLO programs: written by hand with hand-counted bytes, and one program compiled here."""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from bertfam.planning.hlo.collectives import by_axes, collectives
from bertfam.planning.hlo.flops import flops_of
from bertfam.planning.hlo.replica_groups import replica_groups
from bertfam.planning.hlo.text import bits, parse, size


class Mesh:
    """Mesh like `jax.sharding.Mesh`, without devices."""

    def __init__(self, **sizes):
        self.axis_names, self.devices = tuple(sizes), np.arange(np.prod(list(sizes.values()))).reshape(*sizes.values())
        self.size = self.devices.size


CUBE = Mesh(data=2, fsdp=2, tensor=2)
ADD = """
%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}
"""


def module_text(*lines):
    return (
        f"HloModule m, num_partitions=8\n{ADD}\nENTRY %main (p: f32[8]) -> f32[8] {{\n"
        + "".join(f"  {line}\n" for line in ("%p = f32[8]{0} parameter(0)", *lines))
        + "}\n"
    )


def single_collective(line, mesh=CUBE):
    (operation,) = collectives(module_text(line), mesh)
    return operation


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", ("tensor",)),
        ("{{0,2},{1,3},{4,6},{5,7}}", ("fsdp",)),
        ("{{0,1,2,3},{4,5,6,7}}", ("fsdp", "tensor")),
        ("[4,2]<=[8]", ("tensor",)),
        ("[2,4]<=[8]", ("fsdp", "tensor")),
        ("[4,2]<=[2,4]T(1,0)", ("data",)),
        ("[4,2]<=[2,2,2]T(0,2,1)", ("fsdp",)),
        ("[1,8]<=[8]", ("data", "fsdp", "tensor")),
        ("mesh['a'=2,'b'=4] {'a'}", ("data",)),
        ("mesh['a'=2,'b'=4] {'b'}", ("fsdp", "tensor")),
        ("mesh['a'=2,'b'=4] {'b':(1)2}", ("fsdp",)),
        ("mesh['a'=2,'b'=4] {'b':(2)2}", ("tensor",)),
        ("mesh['a'=2,'b'=2,'c'=2] {'c','a'}", ("data", "tensor")),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}", ("tensor",)),
        ("{}", ("data", "fsdp", "tensor")),
        # Groups of several sizes.
        ("{{0,1,2,3},{4,5},{6},{7}}", ("fsdp", "tensor")),
    ],
)
def test_every_notation_of_replica_groups_gives_the_axes(groups, expected):
    operation = single_collective(
        f"%r = f32[8]{{0}} all-reduce(%p), channel_id=1, replica_groups={groups}, use_global_device_ids=true"
    )
    assert operation.axes == expected and operation.bytes == 32
    assert operation.devices == 2 ** len(expected)


def test_unknown_notation_of_groups_is_refused():
    with pytest.raises(ValueError, match="unknown notation"):
        replica_groups(", channel_id=1, replica_groups=new['a']", 8)


def test_groups_of_one_device_send_nothing():
    assert not collectives(module_text("%r = f32[8]{0} all-reduce(%p), replica_groups={{0}}, to_apply=%add"), CUBE)
    assert not collectives(module_text("%r = f32[8]{0} all-reduce(%p), channel_id=1, replica_groups=[8,1]<=[8]"), CUBE)


@pytest.mark.parametrize(
    ("line", "kind", "count", "axes"),
    [
        ("%g = bf16[16,4]{1,0:T(8,128)(2,1)} all-gather(%p), replica_groups=[4,2]<=[8]", "all-gather", 128, ("tensor",)),
        # The bytes are those of the operand, of which each of 4 devices keeps a quarter.
        ("%s = f32[2]{0} reduce-scatter(%p), replica_groups=[2,4]<=[8]", "reduce-scatter", 32, ("fsdp", "tensor")),
        ("%r = (f32[8]{0}, bf16[3]{0}, pred[5]{0}) all-reduce(%p, %p), replica_groups=[4,2]<=[8]", "all-reduce", 43, ("tensor",)),
        ("%t = s4[7]{0} all-to-all(%p), replica_groups=[4,2]<=[8]", "all-to-all", 4, ("tensor",)),
        (
            "%c = f8e4m3fn[6]{0} collective-permute(%p), source_target_pairs={{0,4},{4,0},{1,5},{5,1}}",
            "collective-permute",
            6,
            ("data",),
        ),
        # Asynchronous starts have the shape (operands, results).
        ("%g = (f32[8]{0}, f32[16]{0}) all-gather-start(%p), replica_groups=[4,2]<=[8]", "all-gather", 64, ("tensor",)),
        (
            "%g = ((f32[8]{0}, s8[2]{0}), (f32[16]{0}, s8[4]{0})) all-gather-start(%p, %p), replica_groups=[4,2]<=[8]",
            "all-gather",
            68,
            ("tensor",),
        ),
        ("%r = f32[8]{0} all-reduce-start(%p), replica_groups=[4,2]<=[8], to_apply=%add", "all-reduce", 32, ("tensor",)),
        (
            "%c = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%p), source_target_pairs={{0,1},{1,0}}",
            "collective-permute",
            32,
            ("tensor",),
        ),
        ("%b = f32[8]{0} collective-broadcast(%p), replica_groups={{0,1},{2,3}}", "collective-broadcast", 32, ("tensor",)),
        ("%t = f32[8]{0} ragged-all-to-all(%p, %p), replica_groups=[4,2]<=[8]", "ragged-all-to-all", 32, ("tensor",)),
        (
            "%s = ((f32[8]{0}), f32[4]{0}) reduce-scatter-start(%p), replica_groups=[4,2]<=[8], to_apply=%add",
            "reduce-scatter",
            32,
            ("tensor",),
        ),
    ],
)
def test_bytes_of_every_kind_of_collective(line, kind, count, axes):
    operation = single_collective(line)
    assert (operation.kind, operation.bytes, operation.axes, operation.times) == (kind, count, axes, 1)


def test_asynchronous_collective_is_counted_once():
    lines = (
        "%g = (f32[8]{0}, f32[16]{0}) all-gather-start(%p), replica_groups=[4,2]<=[8]",
        "ROOT %d = f32[16]{0} all-gather-done(%g)",
    )
    assert len(collectives(module_text(*lines), CUBE)) == 1


WRAPPED = """
%wrapped (q: f32[8]) -> f32[4] {
  %q = f32[8]{0} parameter(0)
  ROOT %s = f32[4]{0} reduce-scatter(%q), channel_id=3, replica_groups=[4,2]<=[8], to_apply=%add, metadata={op_name="jit(f)/s"}
}
"""


@pytest.mark.parametrize(
    ("transfer", "kind", "count"),
    [
        ("ALL_REDUCE", "all-reduce", 32),
        ("REDUCE_SCATTER", "reduce-scatter", 32),
        ("ALL_TO_ALL", "all-to-all", 32),
        ("ALL_GATHER", "all-gather", 64),
        ("ONE_TO_ONE", "collective-permute", 32),
    ],
)
def test_transfers_of_the_tpu_compiler_between_slices(transfer, kind, count):
    """Recognise a send to the network's runtime; an all-gather receives more than it sends."""
    two_slices = Mesh(replica=2, data=4)
    two_slices.devices = np.array([SimpleNamespace(slice_index=place // 4) for place in range(8)]).reshape(2, 4)
    attributes = f'is_host_transfer=true, frontend_attributes={{_xla_megascale_transfer_type="{transfer}"}}'
    (operation,) = collectives(
        module_text(
            f"%send = (f32[8]{{0}}, u32[], token[]) send(%p, %after), channel_id=2, {attributes}",
            f"%sent = token[] send-done(%send), channel_id=2, {attributes}",
            f"%recv = (f32[16]{{0}}, u32[], token[]) recv(%after), channel_id=1, {attributes}",
            f"%done = (f32[16]{{0}}, token[]) recv-done(%recv), channel_id=1, {attributes}",
        ),
        two_slices,
    )
    assert (operation.kind, operation.axes, operation.devices, operation.bytes) == (kind, ("replica",), 2, count)


def test_collective_in_an_asynchronous_computation():
    start = "%a = ((f32[8]{0}), f32[4]{0}, u32[]) async-start(%p), calls=%wrapped"
    (operation,) = collectives(WRAPPED + module_text(start, "ROOT %d = f32[4]{0} async-done(%a), calls=%wrapped"), CUBE)
    assert (operation.kind, operation.bytes, operation.op_name) == ("reduce-scatter", 32, "jit(f)/s")


def fused_computation(name, *lines):
    return (
        f"%{name} (q: f32[8]) -> f32[8] {{\n  %q = f32[8]{{0}} parameter(0)\n" + "".join(f"  {line}\n" for line in lines) + "}\n"
    )


def test_fused_collectives_of_the_tpu_compiler():
    """Count an all-gather in three fusions (start, middle, end) once, and every reduce-scatter, even on one channel."""
    gather = "%g = f32[16]{{0}} all-gather(%q), channel_id=5, replica_groups=[4,2]<=[8], backend_config={{{}}}"
    pieces = {"begun": -1, "beside": 2, "ended": 2}
    text = "".join(fused_computation(name, gather.format(f'"config":{{"flag_start":"{flag}"}}')) for name, flag in pieces.items())
    for number, count in enumerate((8, 12)):
        text += fused_computation(
            f"all-reduce-scatter.{number}",
            f"%r = f32[{count}]{{0}} all-reduce(%q), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%add",
            f"ROOT %s = f32[{count // 4}]{{0}} dynamic-slice(%r, %q), dynamic_slice_sizes={{{count // 4}}}",
        )
    names = [*pieces, "all-reduce-scatter.0", "all-reduce-scatter.1"]
    lines = (f'%{name}.f = f32[8]{{0}} fusion(%p), calls=%{name}, metadata={{op_name="jit(f)/{name}"}}' for name in names)
    operations = collectives(text + module_text(*lines), CUBE)
    assert [(operation.kind, operation.bytes, operation.axes, operation.op_name) for operation in operations] == [
        ("all-gather", 64, ("tensor",), "jit(f)/begun"),
        ("reduce-scatter", 32, ("fsdp", "tensor"), "jit(f)/all-reduce-scatter.0"),
        ("reduce-scatter", 48, ("fsdp", "tensor"), "jit(f)/all-reduce-scatter.1"),
    ]


PRODUCT = "%{} = f32[8,8]{{1,0}} dot(%p, %p), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}"
PRODUCT_FLOPS = 2 * 8 * 8 * 8


def test_flops_between_the_start_and_the_end_of_a_collective():
    lines = (
        PRODUCT.format("before"),
        "%g = (f32[8]{0}, f32[16]{0}) all-gather-start(%p), replica_groups=[4,2]<=[8]",
        PRODUCT.format("a"),
        "%r = f32[8]{0} all-reduce(%p), replica_groups=[4,2]<=[8], to_apply=%add",
        PRODUCT.format("b"),
        "%d = f32[16]{0} all-gather-done(%g)",
        PRODUCT.format("after"),
    )
    text = module_text(*lines).replace("f32[8]{0} parameter(0)", "f32[8,8]{1,0} parameter(0)")
    gather, reduction = collectives(text, CUBE)
    assert (gather.beside, reduction.beside) == (2 * PRODUCT_FLOPS, None)


def test_flops_in_the_fusions_of_an_asynchronous_collective_and_between_them():
    gather = (
        "%g = f32[16]{{0}} all-gather(%q), channel_id=5, replica_groups=[4,2]<=[8], "
        'backend_config={{"async_collective_fusion_config":{{"flag_start":"{}"}}}}'
    )
    product = PRODUCT.format("m").replace("%p", "%q")
    lines = {
        "begun": (gather.format(-1),),
        "beside": (gather.format(2), product),
        "other": (product,),
        "ended": (gather.format(2),),
    }
    text = "".join(fused_computation(name, *fused) for name, fused in lines.items()).replace(
        "%q = f32[8]{0}", "%q = f32[8,8]{1,0}"
    )
    (operation,) = collectives(
        text + module_text(*(f"%{name}.f = f32[8]{{0}} fusion(%p), calls=%{name}" for name in lines)), CUBE
    )
    assert operation.beside == 2 * PRODUCT_FLOPS


@pytest.mark.parametrize(
    ("left", "right", "result", "attributes", "products"),
    [
        ("32,5", "5,7", "32,7", "dim_labels=bf_io->bf", 32 * 5 * 7),
        # Rows as a window of one.
        ("6,32,5", "5,7,1", "6,32,7", "window={size=1}, dim_labels=0bf_io0->0bf", 6 * 32 * 5 * 7),
        # Each of 6 rows has a right operand of its own: the dilation leaves one value of each window.
        ("6,32,5", "6,5,7", "6,32,7", "window={size=6 stride=5 lhs_dilate=6}, dim_labels=0bf_0io->0bf", 6 * 32 * 5 * 7),
        # 3 heads are an axis of the right operand that the left one lacks: all but one value of each window are padding.
        ("32,5,1", "3,5,4", "32,4,3", "window={size=3 pad=2_2 rhs_reversal=1}, dim_labels=bf0_0io->bf0", 32 * 5 * 3 * 4),
    ],
)
def test_flops_of_products_as_convolutions(left, right, result, attributes, products):
    lines = (
        f"%l = f32[{left}]{{1,0}} custom-call(%p)",
        f"%r = bf16[{right}]{{1,0}} custom-call(%p)",
        f"%c = f32[{result}]{{1,0}} convolution(%l, %r), {attributes}",
    )
    program = parse(module_text(*lines))
    assert flops_of(program, program.computations["main"]) == 2 * products


def loop(name, limit, *lines, step="%one", first_value="0"):
    """Return a loop that counts the first element of its state; its body contains `lines`."""
    state, lines = "(s32[], f32[8]{0}, s32[])", "".join(f"  {line}\n" for line in lines)
    return f"""
%{name}_body (s: {state}) -> {state} {{
  %s = {state} parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[8]{{0}} get-tuple-element(%s), index=1
  %n = s32[] get-tuple-element(%s), index=2
  %one = s32[] constant(1)
  %two = s32[] constant(2)
  %zero = s32[] constant({first_value})
  %next = s32[] add(%i, {step})
{lines}  ROOT %t = {state} tuple(%next, %x, %n)
}}
%{name}_condition (s: {state}) -> pred[] {{
  %s = {state} parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] get-tuple-element(%s), index=2
  %limit = s32[] constant({limit})
  ROOT %c = pred[] compare(%i, {"%n" if limit is None else "%limit"}), direction=LT
}}
"""


def while_instruction(name, initial="%start", attributes=""):
    return f"%w{name} = (s32[], f32[8]{{0}}, s32[]) while({initial}), condition=%{name}_condition, body=%{name}_body{attributes}"


def abbreviate(text):
    """Write elements of tuples where they are used, `%s#0`, as jax 0.12 with libtpu 0.0.50.1 does."""
    text, count = re.subn(r"\n  %\w+ = \S+ get-tuple-element\(%s\), index=\d", "", text)
    assert count
    parts = (re.sub(r"%([ixn])\b(?! =)", lambda match: f"%s#{'ixn'.index(match[1])}", part) for part in text.split(ADD))
    return ADD.join(parts)


def test_abbreviated_elements_of_nested_tuples():
    text = module_text("%pair = (f32[8]{0}, (s32[], f32[8]{0})) custom-call(%p)", "ROOT %r = f32[8]{0} negate(%pair#1#1)")
    program = parse(text)
    instructions = program.computations[program.entry].instructions
    assert instructions["r"].operands == ["pair#1#1"]
    assert (instructions["pair#1#1"].opcode, instructions["pair#1#1"].operands) == ("get-tuple-element", ["pair#1"])
    assert (instructions["pair#1#1"].shape, instructions["pair#1"].shape) == ("f32[8]{0}", "(s32[], f32[8]{0})")


REDUCE = "%r = f32[8]{0} all-reduce(%x), channel_id=1, replica_groups=[4,2]<=[8], to_apply=%add"
START = ("%zero = s32[] constant(0)", "%six = s32[] constant(6)", "%copied = s32[] copy(%zero)")
START += ("%start = (s32[], f32[8]{0}, s32[]) tuple(%copied, %p, %six)",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (loop("a", 5, REDUCE) + module_text(*START, while_instruction("a")), 5),
        (loop("a", 5, REDUCE, step="%two") + module_text(*START, while_instruction("a")), 3),
        # The limit is in the loop's state, which no iteration changes.
        (loop("a", None, REDUCE) + module_text(*START, while_instruction("a")), 6),
        (
            loop("a", 5, REDUCE)
            + module_text(*START, while_instruction("a", attributes=', backend_config={"known_trip_count":{"n":"7"}}')),
            7,
        ),
        # The first value is an input of the program.
        (
            loop("a", 5, REDUCE)
            + module_text(*START, "%other = (s32[], f32[8]{0}, s32[]) custom-call(%p)", while_instruction("a", "%other")),
            None,
        ),
        # The step is computed by the program.
        (loop("a", 5, REDUCE, step="%n") + module_text(*START, while_instruction("a")), None),
        # A loop of 5 iterations is inside one of 4, next to another of 3.
        (
            loop("b", 5, REDUCE)
            + loop("c", 3)
            + loop(
                "a",
                4,
                "%in = (s32[], f32[8]{0}, s32[]) tuple(%zero, %x, %n)",
                while_instruction("b", "%in"),
                while_instruction("c", "%in"),
            )
            + module_text(*START, while_instruction("a")),
            20,
        ),
        (
            loop("b", 5, REDUCE)
            + loop("a", 4, "%in = (s32[], f32[8]{0}, s32[]) custom-call(%x)", while_instruction("b", "%in"))
            + module_text(*START, while_instruction("a")),
            None,
        ),
    ],
)
@pytest.mark.parametrize("write", [str, abbreviate], ids=["long", "short"])
def test_executions_in_loops_are_counted(text, expected, write):
    (operation,) = collectives(write(text), CUBE)
    assert operation.times == expected
    assert by_axes([operation]) == {"all-reduce": {("tensor",): 32 * (expected or 1)}}


@pytest.mark.parametrize(("limit", "step", "times"), [(5, "%one", 5), (5, "%n", 1)])
def test_flops_of_loops_count_each_iteration_if_their_number_is_known(limit, step, times):
    text = loop("a", limit, PRODUCT.format("m").replace("%p", "%x"), step=step).replace(
        "%x = f32[8]{0} get", "%x = f32[8,8]{1,0} get"
    )
    program = parse(text + module_text(*START, while_instruction("a")))
    assert flops_of(program, program.computations["main"]) == times * PRODUCT_FLOPS


@pytest.mark.parametrize(("step", "expected"), [("%one", 6), ("%n", None)])
def test_condition_runs_once_more_than_the_body(step, expected):
    text = loop("a", 5, step=step) + module_text(*START, while_instruction("a"))
    condition = "  %r = pred[] all-reduce(%s), channel_id=1, replica_groups=[4,2]<=[8], to_apply=%add\n  ROOT %c ="
    (operation,) = collectives(text.replace("  ROOT %c =", condition), CUBE)
    assert (operation.times, operation.total) == (expected, expected or 1)


def test_counter_from_another_loop_is_unknown():
    """An element of the other loop's result is not an element of the state, even with the same index."""
    inner = ("%in = (s32[], f32[8]{0}, s32[]) tuple(%zero, %x, %n)", while_instruction("b", "%in"))
    counted = "%counted = s32[] get-tuple-element(%wb), index=0"
    text = loop("b", 3) + loop("a", 5, *inner, counted, REDUCE).replace("tuple(%next, %x, %n)", "tuple(%later, %x, %n)")
    text = text.replace(REDUCE, f"%later = s32[] add(%counted, %one)\n  {REDUCE}")
    (operation,) = collectives(text + module_text(*START, while_instruction("a")), CUBE)
    assert operation.times is None


def test_comparison_in_a_fusion_or_with_swapped_operands():
    text = loop("a", 5, REDUCE) + module_text(*START, while_instruction("a"))
    compare = "%test (l: s32[], r: s32[]) -> pred[] {\n  %l = s32[] parameter(0)\n  %r = s32[] parameter(1)\n" + (
        "  ROOT %e = pred[] compare(%r, %l), direction=GT\n}\n"
    )
    fused_text = text.replace("compare(%i, %limit), direction=LT", "fusion(%i, %limit), kind=kLoop, calls=%test")
    assert collectives(compare + fused_text, CUBE)[0].times == 5
    assert collectives(text.replace("direction=LT", "direction=LE"), CUBE)[0].times == 6
    assert collectives(text.replace("direction=LT", "direction=NE"), CUBE)[0].times is None


def test_branches_and_calls_are_counted():
    branches = "".join(fused_computation(name, REDUCE.replace("%x", "%q")) for name in ("left", "right", "called"))
    lines = (
        "%c = f32[8]{0} conditional(%p, %p, %p), branch_computations={%left, %right}",
        "%d = f32[8]{0} call(%p), to_apply=%called",
    )
    assert len(collectives(branches + module_text(*lines), CUBE)) == 3


def test_sizes_of_types_and_shapes():
    assert [bits(dtype) for dtype in ("f32", "bf16", "f8e5m2", "s4", "pred", "c64", "token", "u64")] == [
        32,
        16,
        8,
        4,
        8,
        64,
        0,
        64,
    ]
    assert size("(f32[2,3]{1,0:T(8,128)}, s32[], token[], s4[3]{0:E(4)})") == 24 + 4 + 2
    assert size("bf16[<=8,2]") == 32


def test_instructions_are_parsed():
    program = parse(module_text('ROOT %r = f32[8]{0} custom-call(%p, /*index=1*/%p), custom_call_target="f(x", index=3'))
    instruction = program.computations[program.entry].instructions["r"]
    assert (instruction.opcode, instruction.operands, instruction.attribute("index"), program.entry) == (
        "custom-call",
        ["p", "p"],
        "3",
        "main",
    )


PROGRAM = """
import json
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from bertfam.planning.hlo.collectives import by_axes, collectives

mesh = jax.make_mesh((2, 4), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)
place = lambda shape, *axes: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*axes)))
def f(kernels, x):
    def layer(x, kernel):
        whole = jax.lax.with_sharding_constraint(kernel, NamedSharding(mesh, P()))
        return jax.lax.with_sharding_constraint(jnp.tanh(x @ whole), NamedSharding(mesh, P(("data", "fsdp")))), None
    return jax.lax.scan(layer, x, kernels)[0].sum()
compiled = jax.jit(f).lower(place((5, 64, 64), None, "fsdp"), place((16, 64), ("data", "fsdp"))).compile()
found = by_axes(collectives(compiled.as_text(), mesh))
print(json.dumps({f"{kind} {'+'.join(axes)}": count for kind, of in found.items() for axes, count in of.items()}))
"""


def test_collectives_of_a_program_compiled_here():
    """Five layers gather their float32 kernels of 64 x 64 over fsdp; then one number is summed over all devices."""
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    process = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=os.environ | environment)
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == {"all-gather fsdp": 5 * 64 * 64 * 4, "all-reduce data+fsdp": 4}
