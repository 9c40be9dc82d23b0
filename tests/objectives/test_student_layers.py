"""Initial parameters of students of all families, copied from their teachers."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from flax import linen as nn
from flax import traverse_util

from bertfam.errors import UserError
from bertfam.features import RowShape
from bertfam.models.albert import AlbertConfig
from bertfam.models.bert import BertConfig
from bertfam.models.distilbert import DistilBertConfig
from bertfam.models.modernbert import ModernBertConfig
from bertfam.models.roberta import RobertaConfig
from bertfam.objectives.mlm import Mlm
from bertfam.objectives.student.layers import teacher_params

SIZES = {"vocab_size": 50, "num_layers": 4, "hidden_size": 16, "num_heads": 2, "feed_forward_size": 32, "max_length": 12}
BERT = BertConfig(**SIZES)


@functools.cache
def params_of(config):
    """Return parameters whose values count up, so that no two are equal."""
    shapes = nn.meta.unbox(jax.eval_shape(lambda key: Mlm(config).init(key, RowShape(8, 2))[0], jax.random.key(0)))
    flat, values, start = traverse_util.flatten_dict(shapes, sep="/"), {}, 1
    for name, leaf in sorted(flat.items()):
        values[name] = np.arange(start, start + leaf.size, dtype=np.float32).reshape(leaf.shape)
        start += leaf.size
    return values


def copy_layers(student, teacher, layers):
    teacher_values = params_of(teacher)
    return traverse_util.flatten_dict(
        teacher_params(student, teacher, traverse_util.unflatten_dict(teacher_values, sep="/"), layers), sep="/"
    ), teacher_values


@pytest.mark.parametrize("layers", [(0, 3), (2, 1), (1, 1)])
def test_distilbert_student_of_bert(layers):
    """All parameters of the student are copied, and no token types, which it lacks."""
    student = DistilBertConfig(**SIZES | {"num_layers": 2})
    copied, teacher_values = copy_layers(student, BERT, layers)
    assert copied.keys() == params_of(student).keys()
    for name, value in copied.items():
        expected = teacher_values[name][list(layers)] if "/layers/" in name else teacher_values[name]
        assert np.array_equal(value, expected), name


def test_bert_student_of_distilbert_has_new_token_types():
    copied, _ = copy_layers(dataclasses.replace(BERT, num_layers=1), DistilBertConfig(**SIZES), (2,))
    student_values = params_of(dataclasses.replace(BERT, num_layers=1))
    assert student_values.keys() - copied.keys() == {"encoder/embeddings/token_type/table"}


def test_shared_layer_stands_for_all_layers():
    """Each layer of a BERT starts as the only layer of its ALBERT teacher; an ALBERT starts as one layer of its BERT teacher."""
    albert = AlbertConfig(**SIZES, embedding_size=None)
    copied, teacher_values = copy_layers(dataclasses.replace(BERT, num_layers=3), albert, (0, 1, 3))
    for name in (name for name in copied if "/layers/" in name):
        assert len(teacher_values[name]) == 1 and np.array_equal(copied[name], np.repeat(teacher_values[name], 3, axis=0)), name
    copied, teacher_values = copy_layers(dataclasses.replace(albert, num_layers=2), BERT, (2, 3))
    for name in (name for name in copied if "/layers/" in name):
        assert np.array_equal(copied[name], teacher_values[name][2:3]), name


def test_first_layer_of_another_kind():
    """ModernBERT's first layer has no norm before its attention: it is copied to the first layer, and to no other."""
    teacher = ModernBertConfig(**SIZES)
    student = dataclasses.replace(teacher, num_layers=2)
    copied, teacher_values = copy_layers(student, teacher, (0, 2))
    assert copied.keys() == params_of(student).keys() and any("/first_layers/" in name for name in copied)
    for name, value in copied.items():
        expected = teacher_values[name][1:2] if "/layers/" in name else teacher_values[name]  # the first layer is separate
        assert np.array_equal(value, expected), name
    for layers in ((1, 2), (0, 0)):
        with pytest.raises(UserError, match=r"layer \d of the teacher has .*: the student cannot start as it"):
            copy_layers(student, teacher, layers)


def test_positions_are_copied_from_the_first_used_row():
    teacher = RobertaConfig(**SIZES)
    copied, teacher_values = copy_layers(dataclasses.replace(BERT, num_layers=1, max_length=8), teacher, (0,))
    name = "encoder/embeddings/position/table"
    assert len(teacher_values[name]) == 14 and np.array_equal(copied[name], teacher_values[name][2:10])
    copied, teacher_values = copy_layers(RobertaConfig(**SIZES | {"num_layers": 1}), BERT, (0,))
    assert np.array_equal(copied[name], np.pad(teacher_values[name], ((2, 0), (0, 0))))
    copied, _ = copy_layers(dataclasses.replace(BERT, max_length=13), BERT, range(4))
    assert name not in copied and "encoder/embeddings/word/table" in copied


def test_heads_of_another_kind_are_new():
    """An untied head has one more table; the student of a teacher without a head has a new one."""
    untied = dataclasses.replace(BERT, tie_embeddings=False)
    for student, teacher in ((BERT, untied), (untied, BERT)):
        copied, _ = copy_layers(student, teacher, range(4))
        assert not any(name.startswith("mlm_head") for name in copied) and "encoder/layers/attention/key/kernel" in copied
    copied, teacher_values = copy_layers(untied, untied, range(4))
    assert np.array_equal(copied["mlm_head/decoder"], teacher_values["mlm_head/decoder"])
    headless = {"encoder": traverse_util.unflatten_dict(params_of(BERT), sep="/")["encoder"]}
    assert set(teacher_params(BERT, BERT, headless, range(4))) == {"encoder"}


def test_tables_with_more_rows_than_tokens():
    """Rows are copied by token, however many others follow them."""
    teacher = dataclasses.replace(BERT, table_rows=200)
    copied, teacher_values = copy_layers(BERT, teacher, range(4))
    for name in ("encoder/embeddings/word/table", "mlm_head/bias"):
        assert len(teacher_values[name]) == 256 and np.array_equal(copied[name][:50], teacher_values[name][:50])


def test_narrower_embeddings_are_not_copied():
    """Layers are equally wide, tables are not: tables, their norm and the head are new."""
    student = dataclasses.replace(BERT, embedding_size=8)
    copied, _ = copy_layers(student, BERT, range(4))
    assert all("/layers/" in name for name in copied)


@pytest.mark.parametrize(
    ("student", "message"),
    [
        (dataclasses.replace(BERT, hidden_size=32), "layer 0 of the teacher has .* and the student's "),
        (
            ModernBertConfig(**SIZES),
            "layer 0 of the teacher has ",
        ),
    ],
)
def test_layers_that_do_not_fit_are_refused(student, message):
    with pytest.raises(UserError, match=f"{message}.*: the student cannot start as it; .*--layers=random"):
        copy_layers(student, BERT, range(4))
