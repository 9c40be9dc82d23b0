"""Headers of the shipped run files: each names a slice on which its training steps fit, with the memory that they take there."""

import re
from datetime import date
from pathlib import Path

import pytest

from bertfam.planning.slices import parse

RUNS = Path(__file__).parents[2] / "gin_configs" / "runs"
FITS = re.compile(
    r"Fits (\S+)\b.*? as shipped, by (?:compiling|estimate): ([\d.]+) of ([\d.]+) GiB a device "
    r'with remat "(?:none|dots|full)" and \d+ microbatch(?:es)? \((\d{4}-\d\d-\d\d), (?:libtpu [\d.]+|not compiled)\)'
)


def header(path):
    """Return the comments before the first line that is none, as one line."""
    lines = path.read_text().splitlines()
    end = next(index for index, line in enumerate(lines) if not line.startswith("#"))
    return " ".join(line.strip("# ") for line in lines[:end])


@pytest.mark.parametrize("name", sorted({path.stem for path in RUNS.glob("*.gin")} - {"defaults"}))
def test_the_header_names_a_slice_on_which_the_run_fits(name):
    found = FITS.search(header(RUNS / f"{name}.gin"))
    assert found, f"add to the header of {name}.gin what `bertfam plan --slice=NAME --program=train` reports"
    slice, used, memory, day = found.groups()
    assert parse(slice).topology and float(used) <= float(memory) and date.fromisoformat(day)
