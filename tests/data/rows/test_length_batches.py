"""Batches of rows of similar length: their shapes, and the order in which they are computed."""

import numpy as np
import pytest

from bertfam.data.rows.length_batches import computed, length_batches, row_length


def rows_of(sizes, length=100):
    places = np.arange(length) < np.array(sizes)[:, None]
    return {"encoder_segment_ids": places.astype(np.int32), "number": np.arange(len(sizes))[:, None]}


@pytest.mark.parametrize(("count", "shapes"), [(1, [(1, 16)]), (5, [(8, 16)]), (40, [(32, 16), (32, 64)])])
def test_few_rows_make_small_batches(count, shapes):
    sizes = [9] * min(count, 32) + [40] * max(0, count - 32)
    batches = [*length_batches(rows_of(sizes), ("encoder_segment_ids", "absent"), 32, 100)]
    assert [batch["encoder_segment_ids"].shape for _, batch in batches] == shapes
    assert sorted(np.concatenate([indices for indices, _ in batches])) == [*range(count)]


def test_lengths_double_up_to_the_longest():
    assert [row_length(size, 100) for size in (1, 16, 17, 33, 65, 100)] == [16, 16, 32, 64, 100, 100]


def test_a_batch_is_computed_before_the_outputs_of_the_one_before_are_awaited():
    events = []

    class Outputs:
        def __init__(self, batch):
            events.append(("computed", int(batch["number"][0, 0])))
            self.batch = batch

        def __array__(self, dtype=None, copy=None):
            events.append(("awaited", int(self.batch["number"][0, 0])))
            return self.batch["number"]

    rows = rows_of([5, 20, 40])
    found = [*computed(length_batches(rows, ("encoder_segment_ids", "number"), 1, 100), Outputs)]
    assert [(indices.tolist(), outputs.tolist()) for indices, outputs in found] == [([n], [[n]]) for n in range(3)]
    assert events == [
        ("computed", 0),
        ("computed", 1),
        ("awaited", 0),
        ("computed", 2),
        ("awaited", 1),
        ("awaited", 2),
    ]
