"""Kernels for Hopper GPUs, interpreted on the CPU and compiled up to the point where a GPU is required."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertfam.kernels.attention.choice import choose
from bertfam.kernels.attention.hopper import Hopper, attend
from bertfam.kernels.attention.interface import Inputs, Request, attention_mask
from bertfam.kernels.attention.patterns import CAUSAL, FULL, BlockSparse, ExtraTokens, GlobalTokens, Window
from bertfam.kernels.attention.reference import Reference
from bertfam.kernels.attention.tiles import (
    ROWS,
    Part,
    block_intervals,
    block_sparse_pairs,
    columns_of,
    interval_visits,
    intervals,
    listed_visits,
    rows_of,
)

GPU = Request("bfloat16", 1024, 64, packed=True, platform="gpu", compute_capability=9.0)
PATTERNS = [FULL, CAUSAL, Window(5, 5), Window(40, 0), Window(0, 17)]
compiles = pytest.mark.skipif(jax.__version_info__ < (0, 11, 2), reason="the kernels require jax 0.11.2")


def packed_rows(length, rows=3):
    """Return rows of many segments, one row of one segment, and one of padding alone."""
    random = np.random.default_rng(0)
    ids = 1 + np.cumsum(random.random((rows, length)) < 0.1, axis=1)
    ids[:, length - 9 :] = 0
    ids[1], ids[2] = 1, 0
    return ids.astype(np.int32)


def seen(segment_ids, pattern):
    """Return the mask of a pattern, bool[rows, queries, keys], False for queries of padding."""
    length = segment_ids.shape[1]
    request = Request("float32", length, 8, pattern, packed=True)
    arrays = [np.zeros((len(segment_ids), length, 1, 8), np.float32)] * 3
    mask = jax.jit(lambda segment_ids: attention_mask(Inputs(*arrays, segment_ids), request))(segment_ids)
    return np.asarray(mask)[:, 0] & (segment_ids > 0)[:, :, None]


compiled_intervals = jax.jit(intervals, static_argnums=(2, 3))


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.describe())
def test_intervals_are_the_mask(pattern):
    segment_ids = packed_rows(60)
    mask = seen(segment_ids, pattern)
    sides = (pattern.left, pattern.right), (pattern.right, pattern.left)
    for (left, right), expected in zip(sides, (mask, np.swapaxes(mask, 1, 2)), strict=True):
        low, high = compiled_intervals(segment_ids, None, left, right)
        places = np.arange(60)
        assert np.array_equal((places >= low[:, :, None]) & (places < high[:, :, None]), expected)


def test_intervals_of_blocks_are_the_mask_in_both_directions():
    segment_ids = packed_rows(60)
    expected, places = seen(segment_ids, ExtraTokens(0, 7)), np.arange(60)
    low, high = jax.jit(block_intervals, static_argnums=1)(segment_ids, 7)
    assert np.array_equal((places >= low[:, :, None]) & (places < high[:, :, None]), expected)
    assert np.array_equal(expected, np.swapaxes(expected, 1, 2))


def test_intervals_of_another_sequence():
    """Each segment sees that of the same number, or nothing."""
    queries, keys = np.array([[1, 1, 2, 3, 0]]), np.array([[0, 1, 1, 1, 3, 3, 0, 0]])
    low, high = compiled_intervals(queries, keys, None, None)
    assert low.tolist() == [[1, 1, 0, 4, 0]] and high.tolist() == [[4, 4, 0, 6, 0]]
    low, high = compiled_intervals(keys, queries, None, None)
    assert low.tolist() == [[0, 0, 0, 0, 3, 3, 0, 0]] and high.tolist() == [[0, 2, 2, 2, 4, 4, 0, 0]]


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.describe())
def test_visits_of_a_tile_are_within_the_row_and_include_all_that_is_seen(pattern):
    length = 4 * ROWS
    low, high = jax.device_get(compiled_intervals(packed_rows(length), None, pattern.left, pattern.right))
    steps = np.asarray(jax.jit(interval_visits, static_argnums=2)(low, high, length).steps)[:, 0]
    for row, tile in np.ndindex(steps.shape[:2]):
        first, count, inner_low, inner_high = steps[row, tile]
        assert first >= 0 and first % 8 == 0 and first + count * ROWS <= length
        rows = slice(tile * ROWS, (tile + 1) * ROWS)
        lows, highs = (side[row, rows][high[row, rows] > 0] for side in (low, high))
        if lows.size:
            assert first <= lows.min() and highs.max() <= first + count * ROWS < highs.max() + 2 * ROWS
            assert inner_low == lows.max() and inner_high == (highs.min() if lows.size == ROWS else 0)
        else:
            assert count == 0 and inner_high == 0


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.describe())
def test_intervals_of_a_part_of_the_queries_are_its_mask(pattern):
    """A device has the queries from place 13 to 39, and all keys."""
    segment_ids, part = packed_rows(60), Part(jnp.int32(13), 27)
    mask, places = seen(segment_ids, pattern)[:, 13:40], np.arange(60)
    low, high = jax.jit(lambda ids: rows_of(*intervals(ids, None, pattern.left, pattern.right), part))(segment_ids)
    visible = (places >= low[:, :, None]) & (places < high[:, :, None])
    assert visible.shape[1] == ROWS and np.array_equal(visible[:, :27], mask) and not visible[:, 27:].any()
    low, high = jax.jit(lambda ids: columns_of(*intervals(ids, None, pattern.right, pattern.left), part))(segment_ids)
    visible = (places[:27] >= low[:, :, None]) & (places[:27] < high[:, :, None])
    assert np.array_equal(visible, np.swapaxes(mask, 1, 2))


def test_listed_visits_of_a_part_of_the_queries_are_those_of_whole_rows():
    heads, blocks, first, count = 2, 12, 4, 3
    generator = np.random.default_rng(0)
    random_blocks = generator.integers(0, blocks, (heads, blocks - 2, 3), np.int32)
    low, high = jax.device_get(compiled_intervals(packed_rows(blocks * ROWS), None, None, None))
    queries, keys = block_sparse_pairs(BlockSparse().within(blocks * ROWS), random_blocks)
    part = Part(jnp.int32(first * ROWS), count * ROWS)

    def visited(tiles, others, **parts):
        """Return the columns that each row of each head sees, as often as it visits them: int[batch, heads, rows, columns]."""
        visits = jax.device_get(jax.jit(lambda: listed_visits(low, high, tiles, others, **parts))())
        batch, rows = visits.low.shape
        counts = np.zeros((batch, heads, rows, blocks * ROWS), int)
        for row, head, tile in np.ndindex(batch, heads, rows // ROWS):
            start, number, *_ = visits.steps[row, head, tile]
            own = slice(tile * ROWS, (tile + 1) * ROWS)
            for column in visits.columns[head, start : start + number]:
                places = column + np.arange(ROWS)
                inside = (places >= visits.low[row, own, None]) & (places < visits.high[row, own, None])
                counts[row, head, own, column : column + ROWS] += inside
        return counts

    own = slice(first * ROWS, (first + count) * ROWS)
    assert np.array_equal(visited(queries, keys, rows=part), visited(queries, keys)[:, :, own])
    assert np.array_equal(visited(keys, queries, columns=part)[..., : count * ROWS], visited(keys, queries)[..., own])


def test_listed_visits_are_the_blocks_of_the_pattern_as_often_as_it_counts_them():
    heads, blocks = 2, 12
    length, random_blocks = blocks * ROWS - 5, np.random.default_rng(0).integers(0, blocks, (heads, blocks - 2, 3), np.int32)
    pattern = BlockSparse().within(length)
    places = np.arange(blocks) * ROWS
    expected = np.asarray(pattern.repeats(places[:, None], places[None], {"random_blocks": random_blocks}))
    sides = np.zeros((1, blocks * ROWS), np.int32), np.full((1, blocks * ROWS), length, np.int32)
    pairs, visit = jax.jit(block_sparse_pairs, static_argnums=0)(pattern, random_blocks), jax.jit(listed_visits)
    for tiles, others, times in ((*pairs, expected), (*pairs[::-1], np.swapaxes(expected, 1, 2))):
        visits = jax.device_get(visit(*sides, tiles, others))
        for head, tile in np.ndindex(heads, blocks):
            first, count, inner_low, inner_high = visits.steps[0, head, tile]
            visited = visits.columns[head, first : first + count]
            assert np.array_equal(np.bincount(visited // ROWS, minlength=blocks), times[head, tile])
            assert np.all(visited % ROWS == 0) and (inner_low, inner_high) == (0, length)


def arrays(length, heads, key_heads, head_dim):
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = [(1, length, n, head_dim) for n in (heads, key_heads, key_heads, heads)]
    return [jax.random.normal(key, shape).astype(jnp.bfloat16) for key, shape in zip(keys, shapes, strict=True)]


@compiles
@pytest.mark.parametrize(
    ("pattern", "heads", "head_dim", "parts"),
    [
        (CAUSAL, 2, 32, 1),
        (GlobalTokens(Window(20, 20), 2), 1, 64, 1),
        (GlobalTokens(Window(20, 20), 2), 1, 32, 2),
        (ExtraTokens(7, 20), 1, 32, 1),
    ],
    ids=["causal, grouped heads", "window and global tokens", "window and global tokens, in parts", "blocks and extra tokens"],
)
def test_outputs_and_gradients_match_the_reference(pattern, heads, head_dim, parts):
    """Rows are computed whole, or in two parts of their queries, as two devices do.

    Their error is at most twice that of the reference in bfloat16; both are compared with the reference in float32.
    """
    from bertfam.kernels.attention.hopper_kernels import Settings

    length = 100  # no multiple of a tile
    *qkv, gradient = arrays(length, heads, 1, head_dim)
    segment_ids = np.ones((1, length), np.int32)
    segment_ids[:, 40:], segment_ids[:, 70:], segment_ids[:, 90:] = 2, 3, 0
    flags = np.zeros((1, length), bool)
    flags[:, [0, 39, 41]] = True  # the third is ignored
    gradient = jnp.where(segment_ids[:, :, None, None] > 0, gradient, 0)

    def inputs(*qkv):
        return Inputs(*qkv, jnp.asarray(segment_ids), arrays={"global_tokens": jnp.asarray(flags)})

    def reference(*qkv):
        return Reference().run(inputs(*qkv), Request(str(qkv[0].dtype), length, head_dim, pattern, packed=True))[0]

    def kernels(query, key, value):
        whole, settings, outputs = inputs(query, key, value), Settings(head_dim**-0.5, interpret=True), []
        if parts == 1:
            return attend(whole, pattern, settings)
        for first, end in ((0, 60), (60, length)):
            own = whole._replace(query=query[:, first:end], segment_ids=whole.segment_ids[:, first:end])
            own = own._replace(key_segment_ids=whole.segment_ids, offset=jnp.int32(first))
            outputs.append(attend(own, pattern, settings))
        return jnp.concatenate(outputs, axis=1)

    def results(function, *qkv):
        output, pull_back = jax.vjp(function, *qkv)
        return [jnp.where(segment_ids[:, :, None, None] > 0, output, 0), *pull_back(gradient.astype(output.dtype))]

    exact = results(reference, *[array.astype(jnp.float32) for array in qkv])
    for ours, theirs, expected in zip(results(kernels, *qkv), results(reference, *qkv), exact, strict=True):
        errors = [np.linalg.norm(np.float64(side) - np.float64(expected)) for side in (ours, theirs)]
        assert errors[0] <= 2 * errors[1] and errors[0] < 0.01 * np.linalg.norm(np.float64(expected))


@compiles
@pytest.mark.parametrize(("pattern", "head_dim"), [(Window(9, 9), 96), (BlockSparse(), 64)], ids=["window", "blocks"])
def test_kernels_lower_to_gpu_code(pattern, head_dim):
    """Their interface changes between versions of jax: this fails where a new version does not compile them.

    The code is the same whatever was lowered before, so that programs are found again in the cache of compiled ones.
    """
    from bertfam.kernels.attention.hopper_kernels import Settings

    length = 12 * ROWS
    *qkv, _ = arrays(length, 2, 1, head_dim)
    random_blocks = {"random_blocks": jnp.zeros((2, 10, 3), jnp.int32)}

    def loss(*qkv):
        inputs = Inputs(*qkv, jnp.ones((1, length), jnp.int32), arrays=random_blocks)
        return jnp.sum(attend(inputs, pattern.within(length), Settings(1.0)).astype(jnp.float32))

    def hashes(loss):
        lowered = jax.jit(jax.grad(loss, (0, 1, 2))).trace(*qkv).lower(lowering_platforms=("cuda",))
        return re.findall('kernel_hash = "(.*?)", module', lowered.as_text())

    found = hashes(loss)
    assert len(found) >= 3
    assert hashes(lambda *qkv: loss(*qkv)) == found


@pytest.mark.parametrize(
    ("change", "name", "message"),
    [
        ({}, "hopper", "fastest"),
        ({"pattern": Window(64, 64)}, "hopper", "fastest"),
        ({"pattern": CAUSAL, "packed": False}, "hopper", "fastest"),
        ({"length": 16_384, "packed": False}, "hopper", "fastest"),
        ({"compute_capability": 8.0}, "xla", "the GPU has compute capability 8.0, not 9.0"),
        ({"compute_capability": 10.0, "pattern": Window(64, 64)}, "blocks", "the GPU has compute capability 10.0, not 9.0"),
        ({"dtype": "float32"}, "xla", "the dtype is float32"),
        ({"head_dim": 40}, "xla", "heads are 40 wide, not 32, 64, 96 or 128"),
        ({"pattern": Window(8, 8, dilation=2)}, "blocks", "one in 2 of 8 tokens on each side"),
        ({"pattern": GlobalTokens(Window(64, 64), 4)}, "hopper", "fastest"),
        ({"pattern": BlockSparse(blocks=16)}, "hopper", "fastest"),
        ({"length": 4352, "pattern": ExtraTokens(256, 84)}, "hopper", "fastest"),
        ({"pattern": BlockSparse(32, blocks=32)}, "block_sparse", "32 tokens"),
        ({"bias": True}, "xla", "scores have a bias"),
        ({"split": True}, "hopper", "fastest"),
        ({"split": True, "length": 4352, "pattern": ExtraTokens(256, 84)}, "blocks", "sharded over devices"),
        ({"split": True, "length": 1000, "pattern": BlockSparse(blocks=16)}, "block_sparse", "not into multiples of 64"),
        ({"return_weights": True}, "reference", "attention weights are requested"),
        ({"length": 256, "key_length": 1024, "pattern": CAUSAL}, "xla", "keys come from a cache"),
        ({"dropout_rate": 0.1}, "hopper", "attention dropout 0.1 is not applied"),
    ],
)
def test_hopper_gpus_get_the_kernels_where_these_can_run(change, name, message, monkeypatch):
    monkeypatch.setattr(jax, "__version_info__", (0, 11, 2))
    backend, reason = choose(dataclasses.replace(GPU, **change))
    assert backend.name == name and message in reason


@pytest.mark.parametrize("version", [(0, 10, 2), (0, 13, 0)])
def test_versions_of_jax_that_the_kernels_were_not_written_for_are_refused(version, monkeypatch):
    monkeypatch.setattr(jax, "__version_info__", version)
    monkeypatch.setattr(jax, "__version__", ".".join(map(str, version)))
    (clash,) = Hopper().clashes(GPU)
    assert jax.__version__ in clash and "0.11.2" in clash
