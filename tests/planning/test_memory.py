"""Device memory of programs, and the modules of their largest arrays."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from bertfam.planning.hlo.allocations import Allocation, Dump, module, parse_out_of_memory
from bertfam.planning.hlo.memory import memory, memory_of_too_large
from bertfam.training.state import TrainState

HLO = """HloModule jit_step

%filled (old: f32[4,100], new: f32[100], at: s32[]) -> f32[4,100] {
  %old = f32[4,100]{1,0} parameter(0)
  %new = f32[100]{0} parameter(1)
  %at = s32[] parameter(2)
  %row = f32[1,100]{1,0} bitcast(%new)
  ROOT %kept = f32[4,100]{1,0} dynamic-update-slice(%old, %row, %at, %at), metadata={op_name="jit(step)/jvp(Net)/update"}
}

ENTRY %main (p: f32[4,100], i: s32[]) -> f32[100] {
  %p = f32[4,100]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %gelu = f32[100]{0} custom-call(%p), metadata={op_name="jit(step)/jvp(Net)/layers/while/body/closed_call/feed_forward/erf"}
  %saved = f32[4,100]{1,0} fusion(%p, %gelu, %i), kind=kLoop, calls=%filled, metadata={op_name="jit(step)/jvp(Net)/layers/while"}
  %looped = f32[4,100]{1,0} custom-call(%saved), metadata={op_name="jit(step)/jvp(Net)/layers/while"}
  %grad = f32[100]{0} custom-call(%looped), metadata={op_name="jit(step)/transpose(jvp(Net))/head/ab,bc->ac/dot_general"}
  ROOT %end = f32[100]{0} add(%grad, %gelu)
}
"""
BUFFERS = """BufferAssignment:
allocation 0: size 1600, parameter 0, shape |f32[4,100]| at ShapeIndex {}:
 value: <1 p @0> (size=1600,offset=0): f32[4,100]{1,0}
allocation 1: size 400, maybe-live-out:
 value: <9 end @0> (size=400,offset=0): f32[100]{0}
allocation 2: size 512, color 1, preallocated-temp:
 value: <8 gelu @1> (size=512,offset=0): f32[100]{0:S(1)}
allocation 3: size 3072, page 0, preallocated-temp:
 value: <3 looped{0} (phi) @0> (size=2048,offset=0): f32[4,100]{1,0:T(8,128)}
 value: <2 saved @0> (size=2048,offset=0): f32[4,100]{1,0:T(8,128)}
 value: <4 grad @0> (size=512,offset=2048): f32[100]{0:T(128)}
 value: <5 gelu @0> (size=512,offset=2560): f32[100]{0:T(128)}
"""


def test_largest_arrays_with_their_modules(tmp_path):
    """Report a buffer shared by several values once, and an array that a loop fills by the module of its rows."""
    (tmp_path / "module_0000.jit_step.after_optimizations.txt").write_text(HLO)
    assert Dump(tmp_path).largest() == []  # no buffers
    (tmp_path / "module_0000.jit_step.after_optimizations-buffer-assignment.txt").write_text(BUFFERS)
    gelu = "Net/layers/feed_forward: erf"
    expected = [Allocation(2048, "f32[4,100]", gelu), Allocation(512, "f32[100]", "Net/head, backward: dot_general")]
    assert Dump(tmp_path).largest(2) == expected
    assert Dump(tmp_path).largest() == [*expected, Allocation(512, "f32[100]", gelu)]


@pytest.mark.parametrize(
    ("op_name", "expected"),
    [
        (
            "jit(train_step)/transpose(jvp(Encoder))/layers/while/body/closed_call/Block/Block._sublayers/attention/attention._attend/"
            "output/dot_general",
            "Encoder/layers/Block/attention/output, backward: dot_general",
        ),
        ("jit(train_step)/jvp(Encoder)/embeddings/jit(_take)/gather", "Encoder/embeddings: gather"),
        ("jit(train_step)/jvp()/reduce_sum", "reduce_sum"),
        ("state.params['encoder']['table']", "state.params['encoder']['table']"),
        ("", ""),
    ],
)
def test_module_of_an_operation(op_name, expected):
    assert module(op_name) == expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (1.55T) exceeds available HBM (15.75G). HLO module: jit_train_step.",
            (int(1.55 * 2**40), int(15.75 * 2**30)),
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 16.29G of 15.75G hbm. Exceeded hbm capacity.",
            (int(16.29 * 2**30), int(15.75 * 2**30)),
        ),
        ("INTERNAL: it is broken", None),
    ],
)
def test_out_of_memory_messages_are_parsed(message, expected):
    assert parse_out_of_memory(message) == expected


@pytest.fixture(scope="module")
def state():
    """State and batch: 1,000 float32 parameters with one moment, and 10 unused numbers."""
    place = NamedSharding(jax.make_mesh((1,), ("data",)), PartitionSpec())

    def leaf(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place)

    return TrainState(leaf(), {"kernel": leaf(10, 100)}, leaf(10, 100), {}, {}, {}, leaf()), {"rows": leaf(50, 10)}


def test_parts_of_a_step_add_up_to_the_allocated_memory(state):
    def step(state, batch):
        gradient = jax.grad(lambda kernel: (jnp.tanh(batch["rows"] @ kernel) ** 2).sum())(state.params["kernel"])
        moment = 0.9 * state.opt_state + gradient
        return state._replace(params={"kernel": state.params["kernel"] - moment}, opt_state=moment), gradient[:2]

    compiled = jax.jit(step, donate_argnums=0).lower(*state).compile()
    parts, analysis = memory(compiled, *state), compiled.memory_analysis()
    assert (parts.parameters, parts.optimizer, parts.batch) == (4000, 4000, 2000)
    assert parts.gradients == min(4000, analysis.temp_size_in_bytes)
    assert parts.gradients + parts.temporaries == analysis.temp_size_in_bytes > 0
    assert parts.other >= 2 * 4 + 200 * 4  # the two counts of the state, and the result that reuses no argument's buffer
    results = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    assert parts.total - parts.code == analysis.argument_size_in_bytes + results + analysis.temp_size_in_bytes
    assert memory(compiled, *state, gradients=0).gradients == 0


def test_remaining_memory_of_a_too_large_program_is_temporaries(state):
    message = "memory required for HLO temporaries (1.0M) exceeds available HBM (0.5M)"
    parts = memory_of_too_large(message, *state, limit=2**19, gradients=2)
    assert (parts.total, parts.gradients, parts.temporaries) == (2**20, 8000, 2**20 - 4000 - 4000 - 2000 - 8000)


def test_too_large_program_exceeds_the_limit_without_a_stated_size(state):
    assert memory_of_too_large("Ran out of memory in memory space vmem", *state, limit=2**19).total == 2**19 + 1
