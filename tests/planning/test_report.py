"""Tables of plans."""

from bertfam.planning.report import largest_text, milliseconds, tables

GIB = 2**30
ROW = {
    "slice": "2xv5e-8",
    "chips": 16,
    "mesh": {"replica": 2, "data": 1, "fsdp": 8, "sequence": 1, "tensor": 1},
    "program": "train 256 x 128",
    "rows_per_device": 16.0,
    "fits": False,
    "memory": {
        **{"parameters": GIB, "optimizer": 2 * GIB, "batch": GIB // 4, "gradients": GIB},
        **{"temporaries": 12 * GIB, "code": GIB // 4, "other": GIB // 2, "total": 17 * GIB},
    },
    "memory_limit": int(15.75 * GIB),
    "collectives": [
        {"kind": "all-gather", "axes": ["fsdp"], "bytes": 1_234_000_000},
        {"kind": "all-reduce", "axes": ["replica", "fsdp"], "bytes": 2_000_000_000},
        {"kind": "all-reduce", "axes": ["fsdp"], "bytes": 1000},
    ],
    "collectives_counted_once": 0,
    "flops": 17.9e12,
    "bound": {"seconds": 0.00568, "binds": "compute"},
    "predicted": None,
    "largest": [{"bytes": 3 * GIB, "shape": "f32[8,128,4096]", "where": "Encoder/layers/attention: dot_general"}],
}
HOST_ROW = ROW | {"slice": "here", "fits": True, "memory_limit": None, "collectives": [], "bound": None}


def test_tables_of_memory_and_work():
    memory, work = ([line.split() for line in table.splitlines()] for table in tables([ROW, HOST_ROW]).split("\n\n")[:2])
    assert memory[2] == ("2xv5e-8 16 replica 2 x fsdp 8 train 256 x 128 16 1.00 2.00 1.00 13.00 17.00 15.75 NO".split())
    assert memory[3][-3:] == ["17.00", "?", "?"]
    assert work[1] == (
        "2xv5e-8 train 256 x 128 17.9 T 5.68 ms compute all-reduce replica+fsdp 2,000, all-gather fsdp 1,234".split()
    )
    assert work[2] == "here train 256 x 128 17.9 T ? ? -".split()


def test_predicted_times_follow_the_bound():
    times = {"products": 0.0245, "memory_passes": 0.01296, "seconds": 0.04401}
    *_, predicted, notes = tables([ROW | {"predicted": times}, HOST_ROW]).split("\n\n")
    assert predicted == "2xv5e-8: train 256 x 128 takes 44 ms (predicted*): products 24.5, memory passes 13"
    assert "predicted*" in notes and "predicted" not in tables([ROW])


def test_times_have_no_exponents():
    assert [milliseconds(seconds) for seconds in (13.5678, 0.00568, 0.0000217)] == ["13,600 ms", "5.68 ms", "0.0217 ms"]


def test_loops_of_unknown_length_are_reported():
    report = tables([ROW | {"collectives_counted_once": 1_234_000_000}])
    assert "all-gather fsdp 1,234, 1,230 of them per iteration of a loop of unknown length" in report


def test_text_of_the_largest_arrays():
    title, line = largest_text(ROW).splitlines()
    assert title == "2xv5e-8, train 256 x 128: the largest arrays"
    assert line.split(maxsplit=3) == ["3.00", "GiB", "f32[8,128,4096]", "Encoder/layers/attention: dot_general"]
