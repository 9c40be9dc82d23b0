"""Fine-tuned models of Hugging Face folders, such as those of BertForSequenceClassification."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from flax import linen as nn

from bertfam.data import vocabularies
from bertfam.data.corpora.labelled.labelled_corpus import LabelKind
from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.data.corpora.labelled.question_files import QuestionFiles
from bertfam.data.corpora.labelled.tagged_files import TaggedFiles
from bertfam.data.rows.labelled.answer_windows import AnswerWindows
from bertfam.data.rows.labelled.labelled_texts import LabelledTexts, Labels
from bertfam.data.rows.labelled.tagged_words import TaggedWords, Tags
from bertfam.data.rows.layout import RowLayout
from bertfam.errors import UserError
from bertfam.features import RowShape
from bertfam.finetuning.predictor import Predictor
from bertfam.interop import huggingface
from bertfam.interop.folders import is_huggingface
from bertfam.models.mapping import CLASSIFIER, SPAN_CLASSIFIER, TOKEN_CLASSIFIER
from bertfam.objectives.fine_tuning.heads import (
    Classification,
    Head,
    MultiLabelClassification,
    Regression,
    SpanExtraction,
    Tagging,
)
from bertfam.objectives.fine_tuning.objective import FineTuning
from bertfam.storage.paths import to_path
from bertfam.storage.untrusted import shown

_LONGEST = 512  # tokens of a text where the model has no limit, as in T5
_LONGEST_WINDOW = 384  # tokens of a question and a window of its context, as of the published SQuAD models
_KINDS: Mapping[type[Head], LabelKind] = {Classification: "class", MultiLabelClassification: "classes", Regression: "number"}
_PARTS = (CLASSIFIER, TOKEN_CLASSIFIER, SPAN_CLASSIFIER)


def has_classifier(path: str | Path) -> bool:
    """Return True if a path is a Hugging Face folder whose class predicts labels of texts or words, or answers."""
    return is_huggingface(path) and huggingface.find_classifier(path) in _PARTS


def open_published(path: str | Path) -> Predictor:
    """Open a Hugging Face folder for which `has_classifier` is True.

    Raises:
      UserError: The folder is not complete, or its config.json describes no labels that bertfam predicts.
    """
    folder = to_path(path)
    config, content = huggingface.inspect_classifier(folder)
    head = _head(str(huggingface.find_classifier(folder)), content, folder / "config.json")
    length = _length(config, head)
    init = FineTuning(config, head).init
    shapes = jax.eval_shape(lambda key: nn.meta.unbox(init(key, RowShape(length, 0))[0]), jax.random.key(0))
    imported = huggingface.read_classifier(folder, shapes)
    vocabulary = vocabularies.load(folder)
    objective = FineTuning(huggingface.with_vocabulary(config, vocabulary, folder), head)
    layout, labels = _layout(objective, length)
    return Predictor(objective, imported.params, vocabulary, None, layout, length, None, labels)


def files_of(head: Head, paths: tuple[str, ...]) -> LabelledFiles | TaggedFiles | QuestionFiles | None:
    """Return files, with the default names of their columns, whose labels a head predicts; None for a head of choices."""
    if isinstance(head, SpanExtraction):
        return QuestionFiles(paths)
    if isinstance(head, Tagging):
        return TaggedFiles(paths, classes=head.classes)
    kind = _KINDS.get(type(head))
    return kind and LabelledFiles(paths, kind=kind, classes=head.class_names)


def row_options(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of `LabelledTexts`, and of `Labels`, with which a network reads labelled texts.

    A causal LM reads them without the frame that encoders have. The rows of an encoder-decoder have no [CLS], and its decoder's
    input where that does not begin with the text's end.
    """
    if model.kind == "decoder":
        return {"framed": False, "start": model.start}, {}
    if model.kind == "encoder_decoder" and model.start != "eos":
        return {"requires_cls": False}, {"start": model.start}
    return {}, {}


def _length(config: Any, head: Head) -> int:
    """Return the tokens of a row."""
    longest = int(config.max_length or _LONGEST)
    return min(longest, _LONGEST_WINDOW) if isinstance(head, SpanExtraction) else longest


def _layout(objective: FineTuning, length: int) -> tuple[RowLayout, Any]:
    """Return the layout of rows, and their noise, which is none."""
    head = objective.head
    if isinstance(head, SpanExtraction):
        # those of `AnswerWindows` in rows of 384 tokens
        return AnswerWindows(stride=max(1, length // 3), max_question=max(1, length // 6)), Labels(head.labels)
    if head.labels_words:
        return TaggedWords(), Tags()
    rows, labels = row_options(objective.model)
    return LabelledTexts(**rows), Labels(head.labels, **labels)


def _head(part: str, content: Mapping[str, Any], path: Path) -> Head:
    """Return the head that config.json's content describes, as transformers reads it."""
    try:
        if part == SPAN_CLASSIFIER:
            return SpanExtraction(has_no_answer=content.get("has_no_answer") is True)
        classes = _classes(content, path)
        if part == TOKEN_CLASSIFIER:
            return Tagging(classes)
        problem = content.get("problem_type") or ("regression" if len(classes) == 1 else "single_label_classification")
        if problem == "regression" and len(classes) == 1:
            return Regression()
        if problem == "single_label_classification":
            return Classification(classes)
        if problem == "multi_label_classification":
            return MultiLabelClassification(classes)
    except UserError as error:
        raise UserError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from error
    raise UserError(f"{path}: problem_type is {shown(problem)} of {len(classes)} outputs, which bertfam does not predict")


def _classes(content: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """Return the names of the classes in config.json, which leaves out id2label for two without names."""
    named = content.get("id2label")
    if named is None:
        count = content.get("num_labels", 2)
        if type(count) is not int or not 0 < count < 1_000_000:
            raise UserError(f"{path}: num_labels is {shown(count)}, and must be a number of classes")
        return tuple(f"LABEL_{index}" for index in range(count))
    expected = [str(index) for index in range(len(named))] if isinstance(named, dict) else []
    if not expected or set(named) != set(expected) or not all(isinstance(name, str) for name in named.values()):
        raise UserError(f"{path}: id2label is {shown(named)}, and must name the classes 0, 1, ...")
    return tuple(named[index] for index in expected)
