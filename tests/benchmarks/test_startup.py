"""The benchmark of starts: stages by the lines of an output, and the table of given figures."""

import pytest

pytest.importorskip("psutil")

from benchmarks import startup
from benchmarks.startup import Seconds

LINES = [
    (Seconds(3.0, 2.0), "0.9 M parameters"),
    (Seconds(3.1, 2.1), "a line of the plan"),
    (Seconds(4.0, 3.0), "compiling stage 1"),
    (Seconds(9.0, 9.0), "compiled stage 1 in 5.0 s"),
    (Seconds(9.5, 9.5), "step 1/20  loss 8.3"),
    (Seconds(9.6, 9.6), "step 2/20  loss 8.2"),
]


def test_a_stage_ends_with_its_line_of_output():
    assert [*startup.stages_of(LINES).values()] == [(3.0, 2.0), (1.0, 1.0), (5.0, 6.0), (0.5, 0.5)]


def test_an_output_that_ends_early_is_an_error():
    with pytest.raises(ValueError, match="the end of first update"):
        startup.stages_of(LINES[:4])


def test_table_has_medians_and_the_whole():
    stages = startup.stages_of(LINES)
    turns = [
        {"cold": {"imports alone": Seconds(passed, 1.0), **stages}, "warm": {"imports alone": Seconds(1.0, 0.5), **stages}}
        for passed in (1.0, 2.0, 9.0)
    ]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in startup.table_of(turns).splitlines()[2:]]
    assert rows[0] == ["imports alone", "2.00", "1.00", "1.00", "0.50"]
    assert rows[-1] == ["whole", "9.50", "9.50", "9.50", "9.50"]
