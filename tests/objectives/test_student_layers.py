"""What students of all families start with: each parameter by the teacher's own values."""

import dataclasses

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
from bertfam.objectives.student_layers import teacher_params

SIZES = {"vocab_size": 50, "num_layers": 4, "hidden_size": 16, "num_heads": 2, "feed_forward_size": 32, "max_length": 12}
BERT = BertConfig(**SIZES)


def params_of(config):
    """Every parameter another: counted up."""
    shapes = nn.meta.unbox(jax.eval_shape(lambda key: Mlm(config).init(key, RowShape(8, 2))[0], jax.random.key(0)))
    flat, found, start = traverse_util.flatten_dict(shapes, sep="/"), {}, 1
    for name, leaf in sorted(flat.items()):
        found[name] = np.arange(start, start + leaf.size, dtype=np.float32).reshape(leaf.shape)
        start += leaf.size
    return found


def taken(student, teacher, layers):
    theirs = params_of(teacher)
    return traverse_util.flatten_dict(
        teacher_params(student, teacher, traverse_util.unflatten_dict(theirs, sep="/"), layers), sep="/"
    ), theirs


@pytest.mark.parametrize("layers", [(0, 3), (2, 1), (1, 1)])
def test_a_distilbert_of_a_bert(layers):
    """All of the student, and nothing of the types that it has not."""
    student = DistilBertConfig(**SIZES | {"num_layers": 2})
    found, theirs = taken(student, BERT, layers)
    assert found.keys() == params_of(student).keys()
    for name, value in found.items():
        expected = theirs[name][list(layers)] if "/layers/" in name else theirs[name]
        assert np.array_equal(value, expected), name


def test_a_bert_of_a_distilbert_has_types_of_its_own():
    found, _ = taken(dataclasses.replace(BERT, num_layers=1), DistilBertConfig(**SIZES), (2,))
    ours = params_of(dataclasses.replace(BERT, num_layers=1))
    assert ours.keys() - found.keys() == {"encoder/embeddings/token_type/table"}


def test_a_shared_layer_stands_for_all():
    """ALBERT teaches a BERT, each of whose layers starts as the one; and the other way round it starts as one of them."""
    albert = AlbertConfig(**SIZES, embedding_size=None)
    found, theirs = taken(dataclasses.replace(BERT, num_layers=3), albert, (0, 1, 3))
    for name in (name for name in found if "/layers/" in name):
        assert len(theirs[name]) == 1 and np.array_equal(found[name], np.repeat(theirs[name], 3, axis=0)), name
    found, theirs = taken(dataclasses.replace(albert, num_layers=2), BERT, (2, 3))
    for name in (name for name in found if "/layers/" in name):
        assert np.array_equal(found[name], theirs[name][2:3]), name


def test_first_layers_of_another_kind():
    """ModernBERT's first has no norm before its attention: it is the first again, and nothing else can be."""
    teacher = ModernBertConfig(**SIZES)
    student = dataclasses.replace(teacher, num_layers=2)
    found, theirs = taken(student, teacher, (0, 2))
    assert found.keys() == params_of(student).keys() and any("/first_layers/" in name for name in found)
    for name, value in found.items():
        expected = theirs[name][1:2] if "/layers/" in name else theirs[name]  # the first stands apart
        assert np.array_equal(value, expected), name
    for layers in ((1, 2), (0, 0)):
        with pytest.raises(UserError, match=r"layer \d of the teacher has .*: the student cannot start as it"):
            taken(student, teacher, layers)


def test_positions_are_counted_from_their_own_first():
    teacher = RobertaConfig(**SIZES)
    found, theirs = taken(dataclasses.replace(BERT, num_layers=1, max_length=8), teacher, (0,))
    name = "encoder/embeddings/position/table"
    assert len(theirs[name]) == 14 and np.array_equal(found[name], theirs[name][2:10])
    found, theirs = taken(RobertaConfig(**SIZES | {"num_layers": 1}), BERT, (0,))
    assert np.array_equal(found[name], np.pad(theirs[name], ((2, 0), (0, 0))))
    found, _ = taken(dataclasses.replace(BERT, max_length=13), BERT, range(4))
    assert name not in found and "encoder/embeddings/word/table" in found


def test_heads_of_another_kind_are_new():
    """An untied head has a table more; without any the student has a new one."""
    untied = dataclasses.replace(BERT, tie_embeddings=False)
    for student, teacher in ((BERT, untied), (untied, BERT)):
        found, _ = taken(student, teacher, range(4))
        assert not any(name.startswith("mlm_head") for name in found) and "encoder/layers/attention/key/kernel" in found
    found, theirs = taken(untied, untied, range(4))
    assert np.array_equal(found["mlm_head/decoder"], theirs["mlm_head/decoder"])
    headless = {"encoder": traverse_util.unflatten_dict(params_of(BERT), sep="/")["encoder"]}
    assert set(teacher_params(BERT, BERT, headless, range(4))) == {"encoder"}


def test_tables_with_more_rows_than_tokens():
    """Rows are matched by token, however many stand behind them."""
    teacher = dataclasses.replace(BERT, table_rows=200)
    found, theirs = taken(BERT, teacher, range(4))
    for name in ("encoder/embeddings/word/table", "mlm_head/bias"):
        assert len(theirs[name]) == 256 and np.array_equal(found[name][:50], theirs[name][:50])


def test_narrower_embeddings_are_not_taken():
    """Layers are as wide, tables not: tables, their norm and the head are new."""
    student = dataclasses.replace(BERT, embedding_size=8)
    found, _ = taken(student, BERT, range(4))
    assert all("/layers/" in name for name in found)


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
def test_layers_that_do_not_fit(student, message):
    with pytest.raises(UserError, match=f"{message}.*: the student cannot start as it; .*--layers=random"):
        taken(student, BERT, range(4))
