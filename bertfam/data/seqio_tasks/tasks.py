r"""Seqio tasks: corpora as data sources, and tasks of finished pretraining rows. Imports TensorFlow.

A module registers text of its own, for `--task=my_books --module_import=THE_MODULE`, as follows:

    import seqio
    from bertfam.data.seqio_tasks import tasks
    from bertfam.data.corpora.text_files import TextFiles

    seqio.TaskRegistry.add(
        "my_books",
        source=tasks.CorpusSource(TextFiles(train=("books/*.txt.gz",), input_format="paragraphs")),
        preprocessors=[],
        output_features=tasks.SENTENCES,
    )

Any other source works if its elements, after the preprocessors, are {"text": document} or {"sentences": list of sentences}.

The elements of a text-to-text task are {"inputs": string, "targets": string}:

    def questions(split, shuffle_files, seed=None):
        files = {"train": "train.tsv", "validation": "dev.tsv"}
        lines = tf.data.TextLineDataset(files[split])
        return lines.map(lambda line: dict(zip(("inputs", "targets"), tf.unstack(tf.strings.split(line, "\t"), 2))))

    def accuracy(targets, predictions):
        return {"accuracy": 100 * sum(map(str.__eq__, targets, predictions)) / len(targets)}

    source = seqio.FunctionDataSource(questions, splits=["train", "validation"])
    seqio.TaskRegistry.add(
        "questions", source=source, preprocessors=[], output_features=tasks.PAIRS, metric_fns=[accuracy]
    )

To train an encoder-decoder on it, add --task=questions --gin.SeqioTask.pairs=True after a run file and tasks/text_to_text.gin;
`bertfam evaluate --task=questions --module_import=THE_MODULE` computes its metrics. Tasks that tokenise, such as T5's own, work
unchanged: the run reads their strings and uses its own vocabulary.

Registered here are `python_docs`, the text of the embedded corpus, and tasks of finished rows of it: `python_docs_mlm_nsp`
(BERT's pairs), `python_docs_mlm_nsp_packed` (several pairs per row), `python_docs_mlm` (full sentences) and
`python_docs_mlm_whole_words`; with the features of a decoder `python_docs_causal_lm`, `python_docs_t5_random_spans` and
`python_docs_bart`; and the texts of TensorFlow Datasets in `bertfam.data.seqio_tasks.tfds`.
"""

import seqio
import tensorflow as tf

from bertfam.corruption.bart.denoising import Denoising
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.masked_lm.selection import WholeWords
from bertfam.corruption.next_tokens import NextTokens
from bertfam.corruption.t5.span_corruption import SpanCorruption
from bertfam.data.corpora.python_docs.corpus import PythonDocs
from bertfam.data.rows.mixture import Mixture
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.running_text import Chunks, DocSentences, FullSentences
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.data.seqio_tasks import tfds  # noqa: F401  (registers the texts of TFDS)
from bertfam.data.seqio_tasks.row_tasks import RowSource, RowTask
from bertfam.data.seqio_tasks.text_tasks import DOCUMENTS, CorpusSource, join_sentences
from bertfam.data.seqio_tasks.text_tasks import PAIRS as PAIRS
from bertfam.data.seqio_tasks.text_tasks import SENTENCES as SENTENCES
from bertfam.data.seqio_tasks.vocabulary import PieceVocabulary
from bertfam.data.text_data import TextData
from bertfam.errors import UserError


def add_pretraining_task(
    name: str, data: TextData, *, length: int = 128, vocabulary_size: int = 8192, layout: str = "bert"
) -> seqio.Task:
    """Register a task that yields finished rows, with the features of `data.rows` and `data.corruption`.

    The rows, their names and dtypes are those that `bertfam pretrain` trains on: with shuffling and seed s, element i of the task
    is row i of the concatenated batches of a run with `Run.seed` s. Nothing is read before the first use, which builds the token
    cache if it is missing. `get_dataset` supports:

      sequence_length: the length of `encoder_input_tokens`, or of `decoder_input_tokens` if there is no encoder, is the row
        length; the default is `length`. It determines the length of an encoder-decoder's targets.
      seed: seed of the chunks, the order and the noise; None means 0. Equal seeds give equal rows.
      shuffle: False keeps the examples in the order of the text, with the same noise.
      num_epochs: number of epochs, each with a new order and new noise; None means endless.
      shard_info: element i of an epoch belongs to shard i % n; its row does not depend on n.

    Args:
      name: name of the task.
      data: cache, corpus and vocabulary, rows and noise. Without `cache_dir` the cache is in bertfam's cache folder; without
        `vocabulary` one is learnt from the training text.
      length: tokens per row if `sequence_length` is not given.
      vocabulary_size: number of pieces to learn if `data.vocabulary` is None.
      layout: control tokens of the learnt vocabulary: "bert", "t5" (with sentinels), "gpt2", ...

    Raises:
      UserError: if `data` has neither a corpus nor a cache, or a mixture of corpora.
    """
    if data.corpus is None and data.cache_dir is None:
        raise UserError(f"task {name} requires a corpus, or a cache_dir that holds a token cache")
    if isinstance(data.corpus, Mixture):
        raise UserError(f"task {name} has several corpora: register a task for each, and mix them in a seqio mixture")
    source = RowSource(name, data, length, vocabulary_size, layout)
    pieces, plain = PieceVocabulary(lambda: source.vocabulary), seqio.PassThroughVocabulary(size=0)
    features = {
        feature: seqio.Feature(pieces if feature.endswith("_tokens") else plain, add_eos=False, dtype=tf.as_dtype(spec.dtype))
        for feature, spec in data.features(length).items()
    }
    return seqio.TaskRegistry.add(name, source=source, output_features=features, task_cls=RowTask)


seqio.TaskRegistry.add(
    "python_docs", source=CorpusSource(PythonDocs()), preprocessors=[join_sentences], output_features=DOCUMENTS
)
# Documented tasks, with the rows and the noise of gin_configs/objectives if there is a file of the same name.
for _name, _data in {
    "mlm_nsp": TextData(PythonDocs()),
    "mlm_nsp_packed": TextData(PythonDocs(), rows=Packed(SentencePairs())),
    "mlm": TextData(PythonDocs(), rows=FullSentences()),
    "mlm_whole_words": TextData(PythonDocs(), rows=FullSentences(), corruption=BertMasking(choice=WholeWords())),
    "causal_lm": TextData(PythonDocs(), rows=Chunks(), corruption=NextTokens()),
    "bart": TextData(PythonDocs(), rows=DocSentences(), corruption=Denoising()),
}.items():
    add_pretraining_task(f"python_docs_{_name}", _data)
add_pretraining_task(
    "python_docs_t5_random_spans",
    TextData(PythonDocs(), rows=Chunks(separated=False), corruption=SpanCorruption()),
    layout="t5",
)
