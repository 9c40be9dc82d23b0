"""Classifiers of texts and words of every family against the torch classes that load their exports."""

import dataclasses
import inspect
from collections import namedtuple

import jax
import numpy as np
import parity
import pytest
from flax import linen as nn

from bertfam.data.rows.labelled.choices import ChoiceTexts
from bertfam.data.rows.labelled.labelled_texts import LabelledTexts, Labels
from bertfam.data.rows.labelled.tagged_words import TaggedWords
from bertfam.data.token_cache.documents import Documents
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.data.vocabularies.pieces import Pieces
from bertfam.errors import UserError
from bertfam.features import RowShape
from bertfam.interop import huggingface
from bertfam.interop.safetensors import open_tensors
from bertfam.layers.heads.classification import OutputLayer
from bertfam.models.albert import AlbertConfig
from bertfam.models.bart import BartConfig
from bertfam.models.bert import BertConfig
from bertfam.models.bigbird import BigBirdConfig
from bertfam.models.distilbert import DistilBertConfig
from bertfam.models.electra import ElectraConfig
from bertfam.models.encoder_decoder import EncoderOnlyConfig
from bertfam.models.ernie import ErnieConfig
from bertfam.models.gpt import GptConfig
from bertfam.models.gpt2 import Gpt2Config
from bertfam.models.longformer import LongformerConfig
from bertfam.models.modernbert import ModernBertConfig
from bertfam.models.mt5 import MT5Config
from bertfam.models.opt import OptConfig
from bertfam.models.roberta import RobertaConfig
from bertfam.models.t5 import T5Config
from bertfam.models.xlnet import XLNetConfig
from bertfam.objectives.fine_tuning.heads import (
    Classification,
    MultiLabelClassification,
    MultipleChoice,
    Regression,
    SpanExtraction,
    Tagging,
)
from bertfam.objectives.fine_tuning.objective import FineTuning

Vocabulary = namedtuple("Vocabulary", "token_ids")
LENGTH = 18
SIZES = {"vocab_size": 101, "num_layers": 2, "hidden_size": 24, "num_heads": 4, "feed_forward_size": 20, "max_length": LENGTH}
T5_SIZES = {name: size for name, size in SIZES.items() if name != "max_length"} | {"head_dim": 5}
ONE = Classification(("bad", "fair", "good"))
SEVERAL = MultiLabelClassification(("a", "b", "c", "d"))
NUMBER = Regression()
TAGS = Tagging(("O", "B-X", "I-X"))
PROBLEMS = {ONE: "single_label_classification", SEVERAL: "multi_label_classification", NUMBER: "regression", TAGS: None}
CASES = {
    "BERT": (BertConfig(**SIZES), "bert", ONE),
    "RoBERTa": (RobertaConfig(**SIZES), "roberta", SEVERAL),
    "ELECTRA": (ElectraConfig(**SIZES, embedding_size=16), "bert", NUMBER),
    "ALBERT": (AlbertConfig(**SIZES, embedding_size=16), "albert", ONE),
    "DistilBERT": (DistilBertConfig(**SIZES), "bert", SEVERAL),
    "ERNIE": (ErnieConfig(**SIZES, task_type_vocab_size=3), "bert", NUMBER),
    "ModernBERT, [CLS]": (
        ModernBertConfig(**SIZES, window=6, classifier_pooling="cls", head_activation="gelu"),
        "bert",
        ONE,
    ),
    "ModernBERT, mean": (
        ModernBertConfig(**SIZES, window=6, classifier_pooling="mean", decoder_bias=False, head_activation="relu"),
        "bert",
        SEVERAL,
    ),
    "XLNet": (XLNetConfig(**SIZES), "xlnet", NUMBER),
    "BigBird": (BigBirdConfig(**SIZES, attention="full"), "big_bird", ONE),
    "Longformer": (LongformerConfig(**SIZES, window=4), "roberta", ONE),
    "GPT": (GptConfig(**SIZES | {"feed_forward_size": 96}), "gpt2", NUMBER),
    "GPT-2": (Gpt2Config(**SIZES), "gpt2", ONE),
    "OPT": (OptConfig(**SIZES, scale_residual_init=False), "gpt2", SEVERAL),
    "OPT, narrow": (
        OptConfig(**SIZES, embedding_size=16, block="post_norm", last_norm=False, scale_residual_init=False),
        "gpt2",
        ONE,
    ),
    "BART": (BartConfig(**SIZES, num_encoder_layers=1), "roberta", ONE),
    "mT5": (MT5Config(**T5_SIZES, num_encoder_layers=1, tie_embeddings=True), "t5", ONE),
    "BERT, tags": (BertConfig(**SIZES), "bert", TAGS),
    "ModernBERT, tags": (ModernBertConfig(**SIZES, window=6, head_activation="relu"), "bert", TAGS),
    "XLNet, tags": (XLNetConfig(**SIZES), "xlnet", TAGS),
    "BigBird, tags": (BigBirdConfig(**SIZES, attention="full"), "big_bird", TAGS),
    "Longformer, tags": (LongformerConfig(**SIZES, window=4), "roberta", TAGS),
}
# Last layers of classifiers of texts, where they are not named "classifier".
LAST_LAYERS = {one: "classifier.out_proj" for one in (RobertaConfig, ElectraConfig, BigBirdConfig, LongformerConfig)}
LAST_LAYERS[XLNetConfig] = "logits_proj"
LAST_LAYERS |= dict.fromkeys((GptConfig, Gpt2Config, OptConfig), "score")
LAST_LAYERS |= dict.fromkeys((BartConfig, MT5Config), "classification_head.out_proj")
# Text tokens of single texts, of first and of second texts.
TEXTS = ((40, 1, 6, 9), (7, 1, 20, 3), (2, 8, 20, 4))


def token_ids(layout):
    layout = LAYOUTS[layout]
    pieces = [*layout.first, *map(str, range(SIZES["vocab_size"] - len(layout.first) - len(layout.last))), *layout.last]
    return Pieces(pieces, layout, np.ones(len(pieces), bool), sentinels=0).token_ids


def labels_of(head, count, generator):
    if head is NUMBER:
        return generator.standard_normal((count, 1))
    return generator.integers(0, 2 if head is SEVERAL else head.outputs, (count, head.labels))


def rows_of(layout, lengths, bounds, labels, tokens, **settings):
    """Return the rows of texts or words of random tokens."""
    starts = np.concatenate([[0], np.cumsum(lengths)])
    text = np.random.default_rng(2).choice(tokens.pieces, starts[-1])
    documents = Documents("toy", text, starts, bounds, labels=np.float32(labels).reshape(-1), **settings)
    count = len(documents)
    return layout.examples(documents, LENGTH, 0, tokens).rows(np.arange(count), np.zeros(count, np.uint64))


def batch_of(head, tokens, texts=LabelledTexts()):  # noqa: B008 - frozen
    """Return ragged rows of four single texts and four pairs, with labels, or of four sentences with tags."""
    generator = np.random.default_rng(1)
    if head is TAGS:
        words = np.array([30, 1, 5, 11])
        lengths, tags = generator.integers(0, 4, words.sum()), generator.integers(0, 3, words.sum())
        bounds = np.concatenate([[0], np.cumsum(words)])
        return rows_of(TaggedWords(), lengths, bounds, tags, tokens, label_count=1, labels_words=True)
    batches = []
    for lengths in (np.array(TEXTS[:1]), np.array(TEXTS[1:])):
        parts, count = lengths.shape
        labels = labels_of(head, count, generator)
        bounds = np.arange(count + 1) * parts
        batches.append(rows_of(texts, lengths.T.reshape(-1), bounds, labels, tokens, label_count=head.labels))
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def random_params(objective):
    """Return random parameters, with scales around 1."""
    shapes = nn.unbox(jax.eval_shape(lambda key: objective.init(key, RowShape(LENGTH, 0))[0], jax.random.key(0)))
    generator = np.random.default_rng(0)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: np.float32(path[-1].key == "scale") + 0.3 * generator.standard_normal(leaf.shape, np.float32), shapes
    )


def exported(folder, objective, params, tokens):
    """Export a model, check what is read from the folder, and return the torch model that transformers loads from it."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config, head = objective.model, objective.head
    special = {"pad_token_id": tokens.pad} if config.kind == "encoder" else huggingface.special_ids(config, Vocabulary(tokens))
    name = huggingface.write(folder, config, params, extra={**head.huggingface(), **special})
    kind = "Token" if head is TAGS else "Sequence"
    assert name.endswith(f"For{kind}Classification")
    auto = getattr(transformers, f"AutoModelFor{kind}Classification")
    model, info = auto.from_pretrained(folder, attn_implementation="eager", output_loading_info=True)
    assert type(model).__name__ == name and not any(info.values()), info
    names = dict(enumerate(getattr(head, "classes", ["LABEL_0"])))
    assert model.config.id2label == names and model.config.num_labels == len(names)
    assert model.config.label2id == {label: index for index, label in names.items()}
    assert model.config.problem_type == PROBLEMS[head]

    imported = huggingface.read(folder)
    assert (imported.config if config.max_length is None else dataclasses.replace(imported.config, max_length=LENGTH)) == config
    assert imported.params.keys() - {"lm_head"} == params.keys() - {head.part}
    # The body is read bit for bit, and all other tensors are ignored.
    family = huggingface.family_of(config)
    stored = {name: tensor.read() for name, tensor in open_tensors(folder).items()}
    prefix = family.classifier_prefix if family.always_prefixed else family.prefix
    body = {prefix + name: value for name, value in huggingface.to_tensors(family, config, imported.params).items()}
    body.pop("final_logits_bias", None)  # of BART's generation class, which has zeros where it is absent
    assert all(np.array_equal(value, stored[name]) for name, value in body.items())
    last = "classifier" if head is TAGS else LAST_LAYERS.get(type(config), "classifier")
    assert set(imported.ignored) == stored.keys() - body.keys() >= {f"{last}.weight"}
    return model.eval()


def torch_outputs(model, batch, layout, head):
    """Return the outputs and the loss of the torch class, for rows that are padded as the tokenizer pads them."""
    import torch

    names = {"input_ids": "input_tokens", "attention_mask": "segment_ids", "token_type_ids": "token_type_ids"}
    inputs = {name: batch[f"encoder_{ours}"] for name, ours in names.items()}
    labels = batch["labels"]
    places = back = np.broadcast_to(np.arange(LENGTH), inputs["input_ids"].shape)
    if LAYOUTS[layout].padding_side == "left":
        shifts = (batch["encoder_segment_ids"] == 0).sum(axis=1)[:, None]
        places, back = (places - shifts) % LENGTH, (places + shifts) % LENGTH
        inputs = {name: np.take_along_axis(value, places, axis=1) for name, value in inputs.items()}
    if head is TAGS:
        labels = np.take_along_axis(np.where(batch["label_weights"], labels, -100), places, axis=1).astype(np.int64)
    elif head is ONE:
        labels = labels[:, 0].astype(np.int64)
    # To GPT, token types are further words.
    accepted = inspect.signature(type(model).forward).parameters.keys() - ({"token_type_ids"} if layout == "gpt2" else set())
    tensors = {name: torch.tensor(value, dtype=torch.long) for name, value in inputs.items() if name in accepted}
    # BART's class requires as many </s> in all rows.
    size = 1 if model.config.is_encoder_decoder else len(labels)
    outputs, loss = [], 0.0
    for begin in range(0, len(labels), size):
        own = slice(begin, begin + size)
        with torch.no_grad():
            found = model(**{name: tensor[own] for name, tensor in tensors.items()}, labels=torch.tensor(labels[own]))
        outputs.append(found.logits.numpy())
        loss += float(found.loss) * size / len(labels)
    logits = np.concatenate(outputs)
    return np.take_along_axis(logits, back[..., None], axis=1) if head is TAGS else logits, loss


@pytest.mark.parametrize("case", CASES)
def test_exported_classifier_matches_torch(tmp_path, case):
    config, layout, head = CASES[case]
    objective, tokens = FineTuning(config, head), token_ids(layout)
    is_causal, start = config.kind == "decoder", getattr(config, "start", None)
    texts = LabelledTexts(framed=not is_causal, start=start if is_causal else None, requires_cls=start != "pad")
    labels = Labels(head.labels, start if start == "pad" else None)
    batch, params = labels.corrupt(batch_of(head, tokens, texts), np.zeros(0), tokens), random_params(objective)
    assert {name: value.shape[1:] for name, value in batch.items()} == {
        name: spec.shape for name, spec in objective.features(RowShape(LENGTH, 0)).items()
    }
    model = exported(tmp_path, objective, params, tokens)

    def run(params, batch):
        outputs = objective.outputs(params, batch, key=None, train=False)
        return outputs, head.loss(outputs, batch["labels"], batch["label_weights"])[0] / objective.denominators(batch)["label"]

    with jax.default_matmul_precision("highest"):
        outputs, loss = jax.device_get(jax.jit(run)(params, batch))
    expected, expected_loss = torch_outputs(model, batch, layout, head)
    assert np.ptp(expected, axis=0).min() > 10 * parity.LOGITS
    is_compared = batch["encoder_segment_ids"] > 0 if head is TAGS else slice(None)
    np.testing.assert_allclose(outputs[is_compared], expected[is_compared], atol=parity.LOGITS)
    assert loss == pytest.approx(expected_loss, abs=parity.LOGITS)


@pytest.mark.parametrize("case", ["RoBERTa", "ELECTRA", "ALBERT", "DistilBERT", "ERNIE"])
def test_exported_tags_load_completely(tmp_path, case):
    """The layer is BERT's, except for its dropout."""
    config, layout, _ = CASES[case]
    objective = FineTuning(config, TAGS)
    output = TAGS.classifier(config, objective.execution).output
    assert dataclasses.replace(output, dropout_rate=0.1) == OutputLayer(3)
    exported(tmp_path, objective, random_params(objective), token_ids(layout))


def test_models_without_a_classifier_of_texts_are_refused():
    with pytest.raises(UserError, match="EncoderOnlyConfig has no classifier"):
        FineTuning(EncoderOnlyConfig(T5Config(101)), ONE)
    with pytest.raises(UserError, match="LongformerConfig.global_projections"):
        LongformerConfig(**SIZES, global_projections=False).classifier(2)
    with pytest.raises(UserError, match=r"Stage.length 19 .* BertConfig.max_length 18"):
        FineTuning(BertConfig(**SIZES), ONE).features(RowShape(19, 0))


@pytest.mark.parametrize("case", ["BERT", "RoBERTa", "ELECTRA", "ALBERT", "DistilBERT", "ERNIE", "ModernBERT, mean"])
def test_exported_answers_match_torch(tmp_path, case):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config, layout, _ = CASES[case]
    head, tokens = SpanExtraction(), token_ids(layout)
    objective = FineTuning(config, head)
    params = random_params(objective)
    name = huggingface.write(tmp_path, config, params, extra={**head.huggingface(), "pad_token_id": tokens.pad})
    auto = transformers.AutoModelForQuestionAnswering
    model, info = auto.from_pretrained(tmp_path, attn_implementation="eager", output_loading_info=True)
    assert type(model).__name__ == name and name.endswith("ForQuestionAnswering") and not any(info.values()), info
    if case not in ("BERT", "ModernBERT, mean"):  # the layer of the others is BERT's
        return
    batch = batch_of(ONE, tokens)
    positions = np.random.default_rng(3).integers(0, 3, (len(batch["labels"]), 2))  # all rows have as many tokens
    batch |= {"labels": np.float32(positions), "label_weights": np.ones((len(positions), 2), np.float32)}

    def run(params, batch):
        outputs = objective.outputs(params, batch, key=None, train=False)
        terms = objective.loss(params, {}, {}, batch, key=None, train=False).terms
        return outputs, terms["label"] / objective.denominators(batch)["label"]

    with jax.default_matmul_precision("highest"):
        outputs, loss = jax.device_get(jax.jit(run)(params, batch))
    names = {"input_ids": "input_tokens", "attention_mask": "segment_ids", "token_type_ids": "token_type_ids"}
    accepted = inspect.signature(type(model).forward).parameters
    inputs = {name: torch.tensor(batch[f"encoder_{ours}"]).long() for name, ours in names.items() if name in accepted}
    with torch.no_grad():
        theirs = model.eval()(**inputs)
    is_token = batch["encoder_segment_ids"] > 0
    losses = []
    for side, logits in enumerate((theirs.start_logits, theirs.end_logits)):
        np.testing.assert_allclose(outputs[is_token][:, side], logits.numpy()[is_token], atol=parity.LOGITS)
        of_tokens = torch.where(torch.tensor(is_token), logits, -torch.inf)
        losses.append(torch.nn.functional.cross_entropy(of_tokens, torch.tensor(positions[:, side])).item())
    assert loss == pytest.approx(np.mean(losses), abs=parity.LOGITS)


@pytest.mark.parametrize("case", ["BERT", "RoBERTa", "ELECTRA", "ALBERT", "DistilBERT", "ERNIE", "ModernBERT, mean"])
def test_exported_choices_match_torch(tmp_path, case):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config, layout, _ = CASES[case]
    head, tokens, generator = MultipleChoice(("A", "B", "C")), token_ids(layout), np.random.default_rng(1)
    objective = FineTuning(config, head)
    params = random_params(objective)
    name = huggingface.write(tmp_path, config, params, extra={**head.huggingface(), "pad_token_id": tokens.pad})
    auto = transformers.AutoModelForMultipleChoice
    model, info = auto.from_pretrained(tmp_path, attn_implementation="eager", output_loading_info=True)
    assert type(model).__name__ == name and name.endswith("ForMultipleChoice") and not any(info.values()), info
    if case == "ERNIE":  # the layers are BERT's
        return
    lengths, labels = generator.integers(1, 12, 20), generator.integers(0, 3, 5)
    starts, bounds = np.concatenate([[0], np.cumsum(lengths)]), 4 * np.arange(6)
    text = generator.choice(tokens.pieces, starts[-1])
    documents = Documents("toy", text, starts, bounds, labels=np.float32(labels), label_count=1)
    batch = ChoiceTexts(choices=3).examples(documents, 3 * LENGTH, 0, tokens).rows(np.arange(5), np.zeros(5, np.uint64))
    shape = RowShape(3 * LENGTH, 0)
    assert {name: value.shape[1:] for name, value in batch.items()} == {
        name: spec.shape for name, spec in objective.features(shape).items()
    }

    def run(params, batch):
        terms = objective.loss(params, {}, {}, batch, key=None, train=False).terms
        return objective.outputs(params, batch, key=None, train=False), terms["label"] / objective.denominators(batch)["label"]

    with jax.default_matmul_precision("highest"):
        outputs, loss = jax.device_get(jax.jit(run)(params, batch))
    names = {"input_ids": "input_tokens", "attention_mask": "segment_ids", "token_type_ids": "token_type_ids"}
    accepted = inspect.signature(type(model).forward).parameters
    inputs = {
        name: torch.tensor(batch[f"encoder_{ours}"].reshape(5, 3, -1)).long() for name, ours in names.items() if name in accepted
    }
    with torch.no_grad():
        theirs = model.eval()(**inputs, labels=torch.tensor(labels))
    assert np.ptp(theirs.logits.numpy(), axis=1).min() > 10 * parity.LOGITS
    np.testing.assert_allclose(outputs, theirs.logits.numpy(), atol=parity.LOGITS)
    assert loss == pytest.approx(theirs.loss.item(), abs=parity.LOGITS)
