"""A very small BERT and batches for it, for the tests of objectives, training and sharding."""

import numpy as np

from bertfam.features import RowShape
from bertfam.layers.execution import Execution
from bertfam.models.bert import BertConfig
from bertfam.objectives.bert import MlmNsp

SHAPE = RowShape(length=16, predictions=4)
VOCABULARY = 50
SEED = np.zeros(2, np.uint32)  # seed_words(0)


def objective(dropout=0.0, **changes):
    """Return MLM + NSP of a BERT with two layers of width 16."""
    sizes = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "feed_forward_size": 32, "max_length": 32}
    model = BertConfig(vocab_size=VOCABULARY, **sizes, dropout_rate=dropout, attention_dropout_rate=0.0)
    return MlmNsp(model, Execution(), **changes)


def batch(rows, shape=SHAPE, seed=0, predictions=None):
    """Return random rows of random lengths; `predictions` gives the number in each row, at random from 1 if it is None."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(shape.length // 2, shape.length + 1, rows)
    real = np.arange(shape.length) < lengths[:, None]
    counts = (
        generator.integers(min(1, shape.predictions), shape.predictions + 1, rows)
        if predictions is None
        else np.asarray(predictions)
    )
    positions = np.stack([np.sort(np.resize(generator.permutation(length), shape.predictions)) for length in lengths])
    used = np.arange(shape.predictions) < counts[:, None]
    decoder_features = decoder_rows(rows, shape, generator) if shape.targets else {}
    return decoder_features | {
        "encoder_input_tokens": np.where(real, generator.integers(5, VOCABULARY, real.shape), 0).astype(np.int32),
        "encoder_segment_ids": real.astype(np.int32),
        "encoder_token_type_ids": (real & (np.arange(shape.length) >= lengths[:, None] // 2)).astype(np.int32),
        "masked_positions": np.where(used, positions, 0).astype(np.int32),
        "masked_target_tokens": np.where(used, generator.integers(5, VOCABULARY, used.shape), 0).astype(np.int32),
        "masked_loss_weights": used.astype(np.float32),
        "sequence_start_positions": np.zeros((rows, 1), np.int32),
        "next_sentence_labels": generator.integers(0, 2, (rows, 1)).astype(np.int32),
        "next_sentence_weights": np.ones((rows, 1), np.float32),
    }


def decoder_rows(rows, shape, generator):
    """Return random targets of random lengths, and the same shifted by one place as inputs."""
    lengths = generator.integers(1, shape.targets + 1, rows)
    real = np.arange(shape.targets) < lengths[:, None]
    targets = np.where(real, generator.integers(1, VOCABULARY, real.shape), 0).astype(np.int32)
    return {
        "decoder_input_tokens": np.where(real, np.pad(targets, ((0, 0), (1, 0)))[:, :-1], 0).astype(np.int32),
        "decoder_target_tokens": targets,
        "decoder_segment_ids": real.astype(np.int32),
        "decoder_loss_weights": real.astype(np.float32),
    }


def padded(rows, count):
    """Append `count` rows of padding to a batch."""
    return {name: np.concatenate([value, np.zeros((count, *value.shape[1:]), value.dtype)]) for name, value in rows.items()}
