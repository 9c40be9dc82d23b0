"""The benchmark of schedules: the table of given collectives."""

import pytest

pytest.importorskip("psutil")

from benchmarks.overlap import table_of
from bertfam.planning.hlo.collectives import Collective


def test_equal_collectives_are_one_line_and_the_largest_is_first():
    layer = Collective(
        "all-gather", ("fsdp",), 8, 4_000_000, 12, "bf16[768,3072]", "jit(train_step)/Encoder/layers/dot_general", 5 * 10**9
    )
    table = Collective("all-reduce", ("data",), 8, 90_000_000, None, "f32[30592,768]", "jit(train_step)/Encoder/reduce_sum")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table_of([table, layer, layer]).splitlines()[2:]]
    assert rows == [
        ["all-gather fsdp", "Encoder/layers: dot_general", "bf16[768,3072]", "24", "4.00", "yes", "5.00"],
        ["all-reduce data", "Encoder: reduce_sum", "f32[30592,768]", "?", "90.00", "no", ""],
    ]
