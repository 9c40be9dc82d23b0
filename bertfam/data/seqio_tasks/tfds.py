"""Tasks of documents prepared by TensorFlow Datasets: Wikipedia, Wiki-40B, C4, LM1B.

Registering reads nothing and needs no network, and using a task downloads nothing: the data are prepared once, by
`tfds build NAME` (in ~/tensorflow_datasets, or in the folder $TFDS_DATA_DIR).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf
from typing_extensions import override

from bertfam.data.corpora.sentences import LANGUAGES, UNDETERMINED
from bertfam.data.seqio_tasks.text_tasks import DOCUMENTS, SENTENCES
from bertfam.errors import UserError

TRAIN_ONLY = {"train": "train"}
TRAIN_AND_VALIDATION = {"train": "train", "validation": "validation"}


class PreparedTfds(seqio.TfdsDataSource):
    """Data source of a prepared TFDS builder, with its language.

    Attributes:
      language: language of the text, for the sentence splitter.
    """

    def __init__(self, name: str, splits: Mapping[str, str], language: str) -> None:
        super().__init__(tfds_name=name, splits=dict(splits), read_only=True)
        code = language.partition("-")[0]
        self.language = code if code in LANGUAGES else UNDETERMINED

    @override
    def get_dataset(self, *args: Any, **kwargs: Any) -> tf.data.Dataset:
        self._check_prepared()
        return super().get_dataset(*args, **kwargs)

    @override
    def list_shards(self, split: str) -> Sequence[str]:
        self._check_prepared()
        return super().list_shards(split)

    def _check_prepared(self) -> None:
        """Raise UserError if the data have not been prepared."""
        builder = self.tfds_dataset.builder
        if not (builder.data_path / "dataset_info.json").exists():
            name = self.tfds_dataset.name.partition(":")[0]
            raise UserError(
                f"{name} is not in {builder.data_dir}: prepare it with `tfds build {name}`, or set TFDS_DATA_DIR to the "
                "folder of TensorFlow Datasets that has it"
            )


def add_tfds(
    name: str,
    builder: str,
    *,
    language: str = "en",
    splits: Mapping[str, str] = TRAIN_AND_VALIDATION,
    preprocessor: Callable[[tf.data.Dataset], tf.data.Dataset] | None = None,
) -> seqio.Task:
    """Register a task that gives the documents of a TFDS builder.

    Args:
      name: name of the task.
      builder: name of the builder in TFDS, with config and version, such as "wiki40b/en:1.3.0".
      language: language of the text, for the sentence splitter: ISO 639-1; a part after a hyphen is ignored.
      splits: maps "train", and "validation" if there is one, to the builder's name of the split.
      preprocessor: maps the builder's elements to {"text": string}; by default their `text` is used unchanged.
    """
    return seqio.TaskRegistry.add(
        name,
        source=PreparedTfds(builder, splits, language),
        preprocessors=[preprocessor or _only_text],
        output_features=DOCUMENTS,
    )


def add_wikipedia(language: str, date: str = "20230601") -> seqio.Task:
    """Register `wikipedia_LANGUAGE`, or `wikipedia_DATE_LANGUAGE` for another date; an article is a document.

    TFDS has only one split, so that documents are held out by a hash of their text. The lines of an article are its headings
    and paragraphs.
    """
    name = f"wikipedia_{language}" if date == "20230601" else f"wikipedia_{date}_{language}"
    return add_tfds(_task_name(name), f"wikipedia/{date}.{language}:1.0.0", language=language, splits=TRAIN_ONLY)


def add_wiki40b(language: str) -> seqio.Task:
    """Register `wiki40b_LANGUAGE` (Guo et al. 2020, Wiki-40B): the paragraphs of an article are a document.

    Titles and headings are left out, as BERT leaves them out of Wikipedia (Devlin et al. 2019, section 3.1).
    """
    name = _task_name(f"wiki40b_{language}")
    return add_tfds(name, f"wiki40b/{language}:1.3.0", language=language, preprocessor=wiki40b_paragraphs)


def wiki40b_paragraphs(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Preprocess {"text": string, with Wiki-40B's marks} to {"text": string}, one paragraph per line."""

    def parse(element: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        text = tf.strings.regex_replace(element["text"], r"\n*_START_(?:ARTICLE|SECTION)_\n[^\n]*", "")
        for mark in ("\n_START_PARAGRAPH_\n", "_NEWLINE_"):
            text = tf.strings.regex_replace(text, mark, "\n")
        return {"text": tf.strings.strip(text)}

    return dataset.map(parse)


def _only_text(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.map(lambda element: {"text": element["text"]})


def _one_sentence(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.map(lambda element: {"sentences": element["text"][tf.newaxis]})


def _task_name(name: str) -> str:
    return name.replace("-", "_")  # seqio takes no hyphens


for _language in ("en", "de", "es", "fi", "fr", "zh"):
    add_wikipedia(_language)
for _language in ("en", "de", "es", "fi", "fr", "zh-cn"):
    add_wiki40b(_language)
add_tfds("c4_en", "c4/en:3.1.0")
add_tfds("c4_realnewslike", "c4/realnewslike:3.1.0")
seqio.TaskRegistry.add(
    "lm1b",  # shuffled sentences, each of which is a document
    source=PreparedTfds("lm1b:1.1.0", {"train": "train", "validation": "test"}, "en"),
    preprocessors=[_one_sentence],
    output_features=SENTENCES,
)
