"""Prefetching thread: order, depth, errors and waiting time."""

import threading
import time

import jax
import numpy as np
import pytest
import tiny
from jax.sharding import NamedSharding, PartitionSpec
from time_limits import FAR_SECONDS

from bertfam.sharding.mesh import MeshShape
from bertfam.training.prefetch import Prefetcher, global_batch


def test_batches_come_in_order_and_within_the_depth():
    built, lock = [], threading.Lock()

    def make(step):
        time.sleep(0.001 * (step % 3))
        with lock:
            built.append(step)
        return {"x": step}

    batches = Prefetcher(make, 5, 25, depth=3)
    for step in range(5, 25):
        assert batches.get()[0] == {"x": step}
        batches.refill()
        time.sleep(0.002)
        with lock:
            assert len(built) <= step - 5 + 1 + 3
    batches.close()
    assert built == list(range(5, 25))


def test_several_threads_make_batches_at_once_and_in_order():
    together = threading.Barrier(3, timeout=FAR_SECONDS)

    def make(step):
        together.wait()
        return {"x": step}

    batches = Prefetcher(make, 4, 10, depth=3, threads=3)
    for first in (4, 7):
        assert [batches.get()[0]["x"] for _ in range(3)] == [first, first + 1, first + 2]
        for _ in range(3):
            batches.refill()
    batches.close()


def test_error_of_the_thread_is_raised_by_get():
    def make(step):
        if step == 2:
            raise OSError("the disk is gone")
        return {"x": step}

    batches = Prefetcher(make, 0, 10)
    assert [batches.get()[0]["x"] for _ in range(2)] == [0, 1]
    with pytest.raises(OSError, match="the disk is gone"):
        batches.get()
    batches.close()


def test_close_drops_pending_batches():
    started, is_closing = [], threading.Event()

    def make(step):
        started.append(step)
        if step:
            is_closing.wait(FAR_SECONDS)
        return {"x": step}

    batches = Prefetcher(make, 0, 1000, depth=8)
    batches.get()
    shutdown = batches._pool.shutdown

    def shutdown_before_the_next_batch(**options):
        shutdown(**options | {"wait": False})
        is_closing.set()
        shutdown(**options)

    batches._pool.shutdown = shutdown_before_the_next_batch
    batches.close()
    assert started in ([0], [0, 1])


def test_only_waits_of_idle_devices_count():
    """Each batch is built after the prefetcher has asked three times whether the devices are busy."""
    gates = [threading.Event() for _ in range(3)]
    calls = []

    def make(step):
        gates[step].wait()
        return {"x": step}

    def opening(step, answer):
        def busy():
            calls.append(step)
            if calls.count(step) == 3:
                gates[step].set()
            return answer

        return busy

    batches = Prefetcher(make, 0, 3, depth=1)
    assert batches.get(opening(0, True)) == ({"x": 0}, 0.0)
    batches.refill()
    batch, idle = batches.get(opening(1, False))
    assert batch == {"x": 1} and idle > 0
    gates[2].set()
    batches.refill()
    batches._waiting[0].result()
    assert batches.get(opening(2, False)) == ({"x": 2}, 0.0) and calls.count(2) == 0
    batches.close()


def test_batch_on_one_device_equals_the_rows():
    rows = tiny.batch(4)
    features = tiny.objective().features(tiny.SHAPE)
    mesh = MeshShape().build(jax.devices()[:1])
    shardings = dict.fromkeys(features, NamedSharding(mesh, PartitionSpec("data")))

    class Source:
        def rows(self, step, start, stop):
            assert (step, start, stop) == (7, 0, 4)
            wide = {name: value.astype(np.int64) if value.dtype == np.int32 else value for name, value in rows.items()}
            return wide | {"not a feature": np.zeros(4)}

    batch = global_batch(Source(), 7, 4, features, shardings)
    assert batch.keys() == features.keys() == rows.keys()
    for name, value in batch.items():
        assert value.dtype == features[name].dtype and np.array_equal(value, rows[name])


def test_process_builds_only_the_rows_of_its_devices(monkeypatch):
    """The two devices of this process hold rows 4 and 5, and rows 6 and 7, of eight rows."""
    rows, requests = tiny.batch(8), []

    class Source:
        def rows(self, step, start, stop):
            requests.append((step, start, stop))
            return {name: value[start:stop] for name, value in rows.items()}

    class SecondHalf:
        def addressable_devices_indices_map(self, shape):
            assert shape[0] == 8
            rest = [slice(None)] * (len(shape) - 1)
            return {0: (slice(4, 6), *rest), 1: (slice(6, None), *rest)}

    def shards(shape, sharding, callback):
        return [callback(index) for index in sharding.addressable_devices_indices_map(shape).values()]

    monkeypatch.setattr(jax, "make_array_from_callback", shards)
    features = tiny.objective().features(tiny.SHAPE)
    batch = global_batch(Source(), 3, 8, features, dict.fromkeys(features, SecondHalf()))
    assert requests == [(3, 4, 8)]
    for name, (first, second) in batch.items():
        assert np.array_equal(first, rows[name][4:6]) and np.array_equal(second, rows[name][6:8])
