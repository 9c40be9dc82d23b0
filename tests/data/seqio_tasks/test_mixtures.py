"""Registered seqio mixtures: their rates, and the shares of rows beside seqio's own sampling."""

from collections import Counter

import numpy as np
import pytest
from chi_square import chi_square_limit
from late_import import late_import

from bertfam.data.rows.mixture import Mixture
from bertfam.data.seqio_tasks.corpus import SeqioTask
from bertfam.data.seqio_tasks.mixtures import find_rates
from bertfam.data.text_data import TextData
from bertfam.data.token_cache.builder import build
from bertfam.errors import UserError

seqio, tf, tasks = map(late_import, ("seqio", "tensorflow", "bertfam.data.seqio_tasks.tasks"))

WORDS = {"mixed_cats": "cat", "mixed_dogs": "dog", "mixed_birds": "bird"}
NESTED = {"mixed_birds": 1.0, "mixed_cats": 2.5, "mixed_dogs": 1.5}


def documents(word):
    def make(split, shuffle_files, seed=None):
        return tf.data.Dataset.from_tensors({"text": f"The {word} and the {word}."}).repeat(6)

    return seqio.FunctionDataSource(make, splits=["train"])


@pytest.fixture(scope="module")
def nested():
    """Register a mixture with a rate by a function, and a mixture in it that shares a task."""
    for task, word in WORDS.items():
        seqio.TaskRegistry.add(task, source=documents(word), preprocessors=[], output_features=tasks.DOCUMENTS)
    heldout = seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=["validation"])
    seqio.TaskRegistry.add("mixed_held_out", source=heldout, preprocessors=[], output_features=tasks.DOCUMENTS)
    seqio.MixtureRegistry.add("mixed_pets", [("mixed_cats", 1), ("mixed_dogs", 3)])
    parts = [("mixed_pets", 2.0), ("mixed_cats", 2.0), ("mixed_birds", lambda task: len(task.name) / 11), ("mixed_held_out", 1)]
    seqio.MixtureRegistry.add("mixed_all", parts)
    seqio.MixtureRegistry.add("mixed_wrong", [("mixed_pets", lambda task: 1.0), ("mixed_birds", 1.0)])
    seqio.MixtureRegistry.add("mixed_negative", [("mixed_cats", -1.0), ("mixed_birds", 1.0)])
    seqio.MixtureRegistry.add("mixed_nothing", [("mixed_cats", 0.0)])
    yield "mixed_all"
    for name in ("mixed_all", "mixed_pets", "mixed_wrong", "mixed_negative", "mixed_nothing"):
        seqio.MixtureRegistry.remove(name)
    for name in (*WORDS, "mixed_held_out"):
        seqio.TaskRegistry.remove(name)


def test_rates_of_nested_mixtures(nested):
    assert find_rates(nested, (), in_child=True) == pytest.approx(NESTED)
    assert find_rates("mixed_cats", (), in_child=False) is None
    assert find_rates("mixed_unknown", (), in_child=False) is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mixed_wrong", "--task=mixed_wrong: the rate of task mixed_cats cannot be computed .*'mixed_pets' must be a number"),
        ("mixed_negative", "--task=mixed_negative: the rate of task mixed_cats is -1.0"),
        ("mixed_nothing", "--task=mixed_nothing: no task "),
        ("mixed\x00", r"--task='mixed.x00' cannot be the name "),
    ],
)
def test_bad_rates_are_refused(nested, name, message):
    with pytest.raises(UserError, match=message):
        find_rates(name, (), in_child=False)


def test_shares_of_rows_are_those_of_seqio(nested, vocabulary, tmp_path):
    rates = find_rates(nested, (), in_child=False)
    corpora = tuple(SeqioTask(name, validation_fraction=0.0) for name in rates)
    mixture = Mixture(corpora, tuple(rates), rates=tuple(rates.values()))
    data = TextData(mixture)
    cache = build(data.corpora, vocabulary, tmp_path / "cache", least_documents=2)
    count = 2000
    rows = data.training(cache, vocabulary.token_ids, 16, 8, seed=0).sequence.at(np.arange(count))["encoder_input_tokens"]
    own = Counter()
    for row in rows:
        text = vocabulary.decode(row)
        own.update(name for name, word in WORDS.items() if word in text)
    dataset = seqio.MixtureRegistry.get(nested).get_dataset(split="train", shuffle=False, seed=1)
    elements = dataset.take(count).as_numpy_iterator()
    theirs = Counter(name for element in elements for name, word in WORDS.items() if word in element["text"].decode())
    expected = {name: count * rate / sum(rates.values()) for name, rate in rates.items()}
    for counts in (own, theirs):
        assert sum(counts.values()) > 0.95 * count  # noise may hide every animal of a row
        scale = sum(counts.values()) / count
        chi_square = sum((counts[name] - scale * number) ** 2 / (scale * number) for name, number in expected.items())
        assert chi_square < chi_square_limit(len(expected) - 1)
