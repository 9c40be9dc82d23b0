"""Noise of entities against a slow reading of each row, the shares of the paper, and damaged folders of entities."""

import json

import numpy as np
import pytest
from chi_square import chi_square_limit
from entity_folders import write_folder

from bertfam.corruption import keys
from bertfam.corruption.entities import EntityMasking, find_mentions
from bertfam.corruption.entity_folder import read_entities
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.masked_lm.units import BEGINS, CONTINUES, SalientSpan
from bertfam.corruption.token_ids import TokenIds
from bertfam.errors import UserError
from bertfam.features import RowShape

TOKENS = TokenIds(size=40, pad=0, unk=1, cls=2, sep=3, mask=4, special=(0, 1, 2, 3, 4), starts_word=np.ones(40, bool))
LENGTH, ROWS = 32, 3_000
NAMES = ((5, 6), (5,), (7, 8, 9), (10,), (5, 6, 7))
OTHERS = ((11,), (6, 5), (7, 8))
ENTITY = 2  # bits below are those of phrases


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("entities"), NAMES, 40)


@pytest.fixture(scope="module")
def rows():
    """Return rows [CLS] text [SEP] padding whose text is names, known and unknown, among single tokens in phrases or none."""
    generator = np.random.default_rng(1)
    ids, units = np.zeros((2, ROWS, LENGTH), np.int32)
    for row in range(ROWS):
        text, marks = [TOKENS.cls], [0]
        while len(text) < generator.integers(20, LENGTH - 1):
            name = (*NAMES, *OTHERS)[generator.integers(len(NAMES) + len(OTHERS))]
            is_name = generator.random() < 0.4
            name = name if is_name else (generator.integers(5, 40),)
            phrase = generator.integers(0, 3)
            text += name
            marks += [
                phrase | (BEGINS if place == 0 else CONTINUES) << ENTITY if is_name else phrase for place in range(len(name))
            ]
        size = min(len(text), LENGTH - 1)
        ids[row, :size], units[row, :size] = text[:size], marks[:size]
        ids[row, size] = TOKENS.sep
    real = np.arange(LENGTH) <= np.argmax(ids == TOKENS.sep, axis=1)[:, None]
    return {
        "encoder_input_tokens": ids,
        "encoder_segment_ids": real.astype(np.int32),
        "encoder_token_type_ids": np.zeros_like(ids),
        "sequence_start_positions": np.zeros((ROWS, 1), np.int32),
        "maskable": real & (ids > 4),
        "units": units.astype(np.uint8),
    }


def slow_mentions(rows, row):
    """Return the mentions (begin, pieces) of a row that something follows, one token after another."""
    found, begin = [], None
    for place in range(LENGTH):
        mark = int(rows["units"][row, place]) >> ENTITY & 3
        if begin is not None and mark != CONTINUES:
            pieces = tuple(rows["encoder_input_tokens"][row, begin:place].tolist())
            if rows["maskable"][row, place]:
                found.append((begin, pieces))
            begin = None
        if mark == BEGINS:
            begin = place
    return found


def corrupted(folder, rows, **settings):
    noise = EntityMasking(BertMasking(), str(folder), **settings)
    noise.check(LENGTH, TOKENS)
    found = noise.corrupt(dict(rows), keys.fold(0, np.arange(ROWS)), TOKENS)
    shape = RowShape(LENGTH, noise.predictions(LENGTH))
    for name, spec in noise.features(shape).items():
        assert (found[name].shape[1:], str(found[name].dtype)) == (spec.shape, spec.dtype), name
    return found


def test_known_names_are_found_and_aligned_with_their_first_tokens(folder, rows):
    found = corrupted(folder, rows, replaced=0.0, hidden=0.0)
    slots, all_known = found["entity_targets"].shape[1], 0
    for row in range(ROWS):
        known = [(begin, NAMES.index(pieces) + 1) for begin, pieces in slow_mentions(rows, row) if pieces in NAMES]
        all_known += len(known)
        used = found["entity_loss_weights"][row] > 0
        assert list(zip(found["entity_positions"][row][used], found["entity_targets"][row][used], strict=True)) == known[:slots]
        assert not found["entity_targets"][row][~used].any()
        seen = np.flatnonzero(found["encoder_entity_ids"][row])
        assert list(zip(seen, found["encoder_entity_ids"][row][seen], strict=True)) == known[:slots]
    assert all_known > 3 * ROWS
    plain = BertMasking().corrupt(dict(rows), keys.fold(0, np.arange(ROWS)), TOKENS)
    assert all(np.array_equal(found[name], value) for name, value in plain.items())


def test_shares_of_replaced_and_hidden_entities(folder, rows):
    """Five percent stand for another entity, any of them alike, and 15 % are hidden."""
    found = corrupted(folder, rows)
    row, slot = np.nonzero(found["entity_loss_weights"])
    targets = found["entity_targets"][row, slot]
    seen = found["encoder_entity_ids"][row, found["entity_positions"][row, slot]]
    count = len(row)
    error = 4 * np.sqrt(0.15 * 0.85 / count)
    assert np.mean(seen == 0) == pytest.approx(0.15, abs=error)
    other = (seen != targets) & (seen > 0)
    assert np.mean(other) == pytest.approx(0.05, abs=error)
    pairs = np.zeros((len(NAMES), len(NAMES)))
    np.add.at(pairs, (targets[other] - 1, seen[other] - 1), 1)
    assert not np.diag(pairs).any()
    expected = pairs.sum(1, keepdims=True) / (len(NAMES) - 1) * (1 - np.eye(len(NAMES)))
    assert np.sum((pairs - expected) ** 2 / np.where(expected, expected, 1)) < 45  # 15 degrees of freedom


def test_rows_depend_on_their_own_keys(folder, rows):
    noise = EntityMasking(BertMasking(), str(folder))
    row_keys = keys.fold(0, np.arange(ROWS))
    whole = noise.corrupt(dict(rows), row_keys, TOKENS)
    part = noise.corrupt({name: value[7:40] for name, value in rows.items()}, row_keys[7:40], TOKENS)
    assert all(np.array_equal(value, whole[name][7:40]) for name, value in part.items())


def test_mentions_of_rows_that_begin_and_end_in_one():
    units = np.array([[CONTINUES, BEGINS, BEGINS, CONTINUES, 0, BEGINS]], np.uint8) << ENTITY
    found = find_mentions(units)
    assert [values.tolist() for values in found] == [[0, 0, 0], [1, 2, 5], [2, 4, 6]]


def test_a_single_entity_stays_where_another_would_stand(tmp_path, rows):
    found = corrupted(write_folder(tmp_path, NAMES[:1], 40), rows, replaced=1.0, hidden=0.0)
    assert set(np.unique(found["encoder_entity_ids"])) == {0, 1}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda content: content.update(format=9), ("format 9",)),
        (lambda content: content["entities"].pop(), ("4 entities", "[6, 6]")),
        (lambda content: content["entities"][0].update(pieces=[40]), ("0 .. 39",)),
        (lambda content: content["entities"][0].update(pieces=[]), ("pieces",)),
        (lambda content: content.pop("vocabulary"), ("vocabulary",)),
    ],
)
def test_damaged_folders_are_refused(folder, tmp_path, change, named):
    content = json.loads((folder / "entities.json").read_text())
    change(content)
    (tmp_path / "entities.json").write_text(json.dumps(content))
    (tmp_path / "vectors.npy").write_bytes((folder / "vectors.npy").read_bytes())
    with pytest.raises(UserError) as error:
        read_entities(str(tmp_path))
    assert all(word in str(error.value) for word in (str(tmp_path), *named)) and "\n" not in str(error.value)


def test_vectors_that_are_missing_or_hold_objects_are_refused(folder, tmp_path):
    (tmp_path / "entities.json").write_bytes((folder / "entities.json").read_bytes())
    with pytest.raises(UserError, match=r"vectors\.npy cannot be read"):
        read_entities(str(tmp_path))
    np.save(tmp_path / "vectors.npy", np.array([{}] * 6), allow_pickle=True)
    with pytest.raises(UserError, match="damaged"):
        read_entities(str(tmp_path))


def test_settings_and_folders_that_do_not_fit(folder, tmp_path):
    with pytest.raises(ValueError, match=r"replaced 0.9 and hidden 0.2 .* at most 1"):
        EntityMasking(replaced=0.9, hidden=0.2)
    with pytest.raises(UserError, match="no folder of entities is named: .*ENTITIES.*bertfam entities"):
        EntityMasking().check(LENGTH, TOKENS)
    with pytest.raises(UserError, match="is no folder of entities"):
        EntityMasking(entities=str(tmp_path)).check(LENGTH, TOKENS)
    larger = TokenIds(size=41, pad=0, unk=1, mask=4)
    with pytest.raises(UserError, match=r"vocabulary of 40, and that of the text has 41"):
        EntityMasking(entities=str(folder)).check(LENGTH, larger)


def test_one_salient_span(rows):
    """Each row has one of its marked names of at most two tokens, uniformly drawn, all of its tokens masked, and nothing else."""
    masking = BertMasking(choice=SalientSpan(), max_predictions=2, mask_share=1.0, random_share=0.0)
    found = masking.corrupt(dict(rows), keys.fold(0, np.arange(ROWS)), TOKENS)
    ranks = []
    for row in range(ROWS):
        marks = rows["units"][row] >> ENTITY & 3
        begins = np.flatnonzero((marks == BEGINS) & rows["maskable"][row])
        names = [range(begin, begin + 1 + next(n for n in range(9) if marks[begin + 1 + n] != CONTINUES)) for begin in begins]
        names = [[place for place in name if rows["maskable"][row, place]] for name in names]
        names = [name for name in names if len(name) <= 2]
        used = found["masked_loss_weights"][row] > 0
        places = found["masked_positions"][row][used].tolist()
        assert places in names if names else not places
        assert np.flatnonzero(found["encoder_input_tokens"][row] == TOKENS.mask).tolist() == places
        np.testing.assert_array_equal(found["masked_target_tokens"][row][used], rows["encoder_input_tokens"][row][places])
        if len(names) == 4:
            ranks.append(names.index(places))
    counts = np.bincount(ranks, minlength=4)
    assert ((counts - counts.mean()) ** 2).sum() / counts.mean() < chi_square_limit(3)


def test_rows_without_marks_have_no_salient_span(rows):
    plain = {name: value for name, value in rows.items() if name != "units"}
    found = BertMasking(choice=SalientSpan()).corrupt(plain, keys.fold(0, np.arange(ROWS)), TOKENS)
    assert not found["masked_loss_weights"].any()
    np.testing.assert_array_equal(found["encoder_input_tokens"], rows["encoder_input_tokens"])
