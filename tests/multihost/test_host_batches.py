"""Batches of a packed mixture of three corpora, bit for bit equal on two real processes and in one."""

import hashlib
import json
import os
import pydoc_data.topics
import re
import subprocess
import sys
from pathlib import Path

import host_batches
import numpy as np
import pytest
from host_batches import BATCH, LENGTH, MESHES, STEPS
from once import once
from time_limits import FAR_SECONDS

from bertfam.config import load
from bertfam.data.token_cache.builder import build
from bertfam.data.vocabularies import load as load_vocabulary

LAUNCHER = Path(__file__).parents[2] / "launch" / "local.py"
HOSTS, DEVICES = 2, 6
RUN_FILE = """\
TextData.vocabulary = "{folder}/vocab"
TextData.corpus = @Mixture()
TextData.rows = @Packed()
Mixture.corpora = (@one/TextFiles(), @many/TextFiles(), @json/TextFiles())
Mixture.names = ("one", "many", "json")
Mixture.rates = (5.0, 3.0, 2.0)
one/TextFiles.train = ("{folder}/one.txt",)
many/TextFiles.train = ("{folder}/many-*.txt",)
json/TextFiles.train = ("{folder}/lines.jsonl",)
json/TextFiles.input_format = "jsonl"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, vocabulary):
    """Folder with run.gin, cache/ and hosts/I.json, the report of process I."""

    def make(folder):
        topics = [re.sub(r"\n\n+", "\n", text) for _, text in sorted(pydoc_data.topics.topics.items())]
        paragraphs = [text for topic in topics[0::3] for text in topic.split("\n") if text.strip()]
        (folder / "one.txt").write_text("\n\n".join(paragraphs))  # documents of one or two lines, for packing
        for number in range(9):
            (folder / f"many-{number}.txt").write_text("\n\n".join(topics[1 + 3 * number :: 27]))
        (folder / "lines.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in topics[2::3]))
        vocabulary.save(folder / "vocab")
        (folder / "run.gin").write_text(RUN_FILE.format(folder=folder))
        build(load([str(folder / "run.gin")]).build("TextData").corpora, vocabulary, folder / "cache")
        (folder / "hosts").mkdir()
        flags = [f"--processes={HOSTS}", f"--devices_per_process={DEVICES // HOSTS}"]
        program = [sys.executable, host_batches.__file__, folder / "run.gin", folder / "cache", folder / "hosts"]
        process = subprocess.run(
            [sys.executable, LAUNCHER, *flags, "--", *program],
            capture_output=True,
            text=True,
            env=os.environ,
            timeout=FAR_SECONDS,
        )
        assert process.returncode == 0, process.stderr

    return once(tmp_path_factory, "host_batches", make)


@pytest.fixture(scope="module")
def reports(folder):
    """Reports of the processes in order."""
    return [json.loads((folder / f"hosts/{index}.json").read_text()) for index in range(HOSTS)]


@pytest.fixture(scope="module")
def data(folder):
    """Batches and their features in this process, without a mesh."""
    from bertfam.data.token_cache.cache import TokenCache

    text, cache = load([str(folder / "run.gin")]).build("TextData"), TokenCache(folder / "cache")
    tokens = load_vocabulary(cache.vocabulary_directory).token_ids
    return text.training(cache, tokens, LENGTH, BATCH, seed=3), text.features(LENGTH)


def sorted_spans(digests):
    return sorted(tuple(map(int, span.split(":"))) for span in digests)


def test_shards_of_all_hosts_form_the_batch(data, reports):
    """For every step, feature and mesh the shards cover all rows and equal the rows of the whole batch."""
    source, features = data
    assert [process["process"] for process in reports] == list(range(HOSTS))
    compared = 0
    wholes = {step: source.rows(step, 0, BATCH) for step in STEPS}
    for mesh in MESHES:
        parts = [process["meshes"]["x".join(map(str, mesh))]["batches"] for process in reports]
        assert {int(step) for step in parts[0]} == set(STEPS if mesh == MESHES[0] else STEPS[::50])
        for step in parts[0]:
            for name, spec in features.items():
                digests = [part[step][name] for part in parts]
                rows = sorted(set().union(*(sorted_spans(digests_of_host) for digests_of_host in digests)))
                size = BATCH // (mesh[0] * mesh[1])
                assert rows == [(start, start + size) for start in range(0, BATCH, size)]
                for start, stop in rows:
                    whole = wholes[int(step)][name][start:stop].astype(spec.dtype)
                    digest = hashlib.sha256(np.ascontiguousarray(whole).tobytes()).hexdigest()
                    assert {
                        digests_of_host[f"{start}:{stop}"] for digests_of_host in digests if f"{start}:{stop}" in digests_of_host
                    } == {digest}, (step, name)
                    compared += 1
    assert compared > 101 * 6 * len(features)


def test_host_builds_only_the_rows_of_its_devices(reports):
    def requested_spans(mesh):
        return [process["meshes"][mesh]["asked"] for process in reports]

    assert requested_spans("6x1x1") == [[[0, 12]], [[12, 24]]]
    assert requested_spans("2x1x3") == requested_spans("1x2x3") == [[[0, 12]], [[12, 24]]]
    # The second of three tensor axes of two devices spans both hosts: each builds its rows.
    assert requested_spans("3x1x2") == [[[0, 16]], [[8, 24]]]
    assert requested_spans("1x1x6") == [[[0, 24]]] * 2


def test_batches_never_repeat_and_are_packed(data, reports):
    source, features = data
    digests = [
        span
        for process in reports
        for step in process["meshes"]["6x1x1"]["batches"].values()
        for span in step["encoder_input_tokens"].values()
    ]
    assert len(digests) == 6 * len(STEPS) and len(set(digests)) == len(digests)
    rows = source.rows(1_000_000, 0, BATCH)
    assert (rows["encoder_segment_ids"].max(axis=1) > 1).sum() > BATCH // 3  # packed
    assert "encoder_positions" in features
