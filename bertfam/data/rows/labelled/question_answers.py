"""Rows of a question and its answer for a question encoder and a generator that have vocabularies of their own."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np
from typing_extensions import override

from bertfam.corruption.corruption import FRAMED, RowForm, TextCorruption
from bertfam.corruption.decoder_rows import sequence_features
from bertfam.corruption.token_ids import TokenIds
from bertfam.data import vocabularies
from bertfam.data.rows.labelled.labelled_texts import LabelledExamples
from bertfam.data.rows.layout import RowLayout
from bertfam.data.rows.text_pairs import PairFrame, TextToTextExamples
from bertfam.data.token_cache.documents import Documents
from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, Start, question_features


@dataclass(frozen=True)
class QuestionAnswers(RowLayout):
    """Documents of `AnswerFiles`, a row each: the question in the tokens of both encoders, and the answer.

    The generator's encoder has `// question </s>`, framed as `TextPairs` frames inputs, and much padding: `Rag` puts a passage
    before the question. The question encoder has `[CLS] question [SEP]`, as its vocabulary frames a text.

    Attributes:
      question_vocabulary: Folder of the question encoder's vocabulary.
      question_length: Positions of the question encoder.
      target_tokens: Positions of the decoder.
      start: Token that the decoder reads first: "pad" (T5) or "eos" (BART).
    """

    is_labelled: ClassVar[bool] = True

    question_vocabulary: str = ""
    question_length: int = 64
    target_tokens: int = 32
    start: Start = "pad"

    @override
    def examples(
        self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED
    ) -> "QuestionAnswerExamples":
        question = vocabularies.load(self.question_vocabulary).token_ids
        if question.frame is None:
            raise UserError(
                f"{self.question_vocabulary}: the vocabulary does not say which control tokens surround a text; name that of an "
                "encoder"
            )
        asked = _questions(documents)
        assert asked.labels is not None
        questions = LabelledExamples(asked, asked.labels, self.question_length, question, question.frame)
        pairs = dataclasses.replace(documents, labels=None, label_count=0, pairs=True)
        size, frame = (length, self.target_tokens), PairFrame(tokens, self.start)
        return QuestionAnswerExamples(questions, TextToTextExamples(pairs, size, 0, seed, frame))


class QuestionAnswerExamples:
    """Rows of the questions of one corpus at one length.

    Attributes:
      cut: Number of questions whose ends the question encoder does not read.
      warnings: Lines about texts that are cut off.
    """

    def __init__(self, questions: LabelledExamples, pairs: TextToTextExamples) -> None:
        """Join rows of questions with those of the same questions and answers."""
        self._questions, self._pairs = questions, pairs
        self.cut, self.warnings = questions.cut, [*pairs.warnings]
        if questions.cut:
            self.warnings.append(
                f"{questions.cut:,} of the {len(questions):,} questions have more tokens than their encoder reads, and their "
                "ends are cut off: raise --gin.QUERY_LENGTH to keep them whole"
            )

    def __len__(self) -> int:
        return len(self._questions)

    def documents_of(self, examples: np.ndarray) -> np.ndarray:
        """Return the document of each example: int64[n]."""
        return examples

    def rows(self, examples: np.ndarray, row_keys: np.ndarray) -> dict[str, np.ndarray]:
        """Build finished rows, without random draws: the features of `QuestionAnswerRows`.

        Args:
          examples: int64[n] in [0, len(self)).
          row_keys: uint64[n], unused.
        """
        question = self._questions.rows(examples, row_keys)
        own = {f"question_{name}": question[f"encoder_{name}"] for name in ("input_tokens", "segment_ids", "token_type_ids")}
        own["question_start_positions"] = question["sequence_start_positions"]
        pairs = self._pairs.rows(examples, row_keys)
        unused = ("encoder_token_type_ids", "encoder_positions", "decoder_positions")
        return {name: value for name, value in pairs.items() if name not in unused} | own


@dataclass(frozen=True)
class QuestionAnswerRows(TextCorruption):
    """`TextCorruption` of rows of `QuestionAnswers`: none.

    Attributes:
      question_length: Positions of the question encoder, and labels of a document.
      target_tokens: Positions of the decoder.
      start: Token that the decoder reads first.
    """

    packs: ClassVar[bool] = False

    question_length: int = 64
    target_tokens: int = 32
    start: Start = "pad"

    def __post_init__(self) -> None:
        for name, least in (("question_length", 1), ("target_tokens", 2)):
            if getattr(self, name) < least:
                raise UserError(f"QuestionAnswerRows.{name} is {getattr(self, name)}: it must be at least {least}")
        if self.start not in get_args(Start):
            raise UserError(f"QuestionAnswerRows.start is {self.start!r}: it must be one of {', '.join(get_args(Start))}")

    @property
    @override
    def labels(self) -> int:
        return self.question_length

    @property
    @override
    def labelled_unit(self) -> str:
        return "question"

    @property
    @override
    def decoder_start(self) -> Start:
        return self.start

    @override
    def target_length(self, length: int) -> int:
        return self.target_tokens

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return sequence_features(shape) | question_features(self.question_length)

    @override
    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        return rows


def _questions(documents: Documents) -> Documents:
    """Return the questions in the tokens of their encoder, which are the labels of documents."""
    assert documents.labels is not None
    count, width = len(documents), documents.label_count
    labels = documents.labels.take(np.arange(count * width)).reshape(count, width)
    is_token = np.isfinite(labels)
    starts = np.concatenate([[0], np.cumsum(is_token.sum(axis=1))])
    name = f"the questions of {documents.name}"
    own = np.zeros(count, np.float32)  # which nothing reads
    return Documents(name, labels[is_token].astype(np.int32), starts, np.arange(count + 1), labels=own, label_count=1)
