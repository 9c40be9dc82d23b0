"""Seqio tasks: corpora as data sources, and tasks of finished pretraining rows. Imports TensorFlow.

A module that registers text of its own, for `--task=my_books --module_import=THE_MODULE`:

    import seqio
    from bertfam.data.seqio_tasks import tasks
    from bertfam.data.corpora.text_files import TextFiles

    seqio.TaskRegistry.add(
        "my_books",
        source=tasks.CorpusSource(TextFiles(train=("books/*.txt.gz",), input_format="paragraphs")),
        preprocessors=[],
        output_features=tasks.SENTENCES,
    )

Any other source whose elements, after the preprocessors, are {"text": a document} or {"sentences": its sentences} will do.

A text-to-text task is one whose elements are {"inputs": a string, "targets": a string}:

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

It trains an encoder-decoder by --task=questions --gin.SeqioTask.pairs=True behind a run file and tasks/text_to_text.gin, and
`bertfam evaluate --task=questions --module_import=THE_MODULE` gives its metrics. Tasks that tokenise, as T5's own do, serve as
they are: their strings are taken, and the vocabulary is the run's.

Registered here: `python_docs`, the text of the embedded corpus, and finished rows of it: `python_docs_mlm_nsp` (BERT's pairs),
`python_docs_mlm_nsp_packed` (several pairs a row), `python_docs_mlm` (full sentences), `python_docs_mlm_whole_words`,
`python_docs_roberta`, `python_docs_mlm_sop` (ALBERT), `python_docs_mlm_structure` (StructBERT), `python_docs_mlm_sbo` (SpanBERT),
`python_docs_electra`, `python_docs_ernie` (names and numbers marked), `python_docs_modernbert`; with the features of a decoder
`python_docs_causal_lm`, `python_docs_t5_random_spans`, `python_docs_bart`; and the texts of TensorFlow Datasets that are in
`bertfam.data.seqio_tasks.tfds`.
"""

import dataclasses

import seqio
import tensorflow as tf

from bertfam.corruption.bart.denoising import Denoising
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.masked_lm.selection import WholeWords, WithReplacement
from bertfam.corruption.masked_lm.shuffled_windows import ShuffledWindows
from bertfam.corruption.masked_lm.span_selection import WordNgrams, WordSpans
from bertfam.corruption.masked_lm.units import Units
from bertfam.corruption.next_tokens import NextTokens
from bertfam.corruption.t5.span_corruption import SpanCorruption
from bertfam.data.corpora.marked_text import MarkedText
from bertfam.data.corpora.python_docs.corpus import PythonDocs
from bertfam.data.rows.mixture import Mixture
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.running_text import Chunks, DocSentences, FullSentences, WholeDocuments
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.data.rows.two_segments import TwoSegments
from bertfam.data.seqio_tasks import tfds  # noqa: F401  (registers TFDS' texts)
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
    """Register a task that gives finished rows, with the features of `data.rows` and `data.corruption`.

    The rows, their names and dtypes are those that `bertfam pretrain` trains on: shuffled with seed s, element i of the task
    is row i of the batches, one after another, of a run with `Run.seed` s. Nothing is read before the first use, which builds
    the token cache if it is missing. What `get_dataset` heeds:

      sequence_length: the length of `encoder_input_tokens`, or of `decoder_input_tokens` where there is no encoder, decides the
        row length; without it, `length`. What an encoder-decoder's targets have follows from it.
      seed: of the chunks, the order and the noise; None: 0. Equal seeds give equal rows.
      shuffle: False gives the examples in the order of the text, the noise being the same.
      num_epochs: each epoch has a new order and new noise; None: without end.
      shard_info: element i of an epoch goes to shard i % n, whose rows do not depend on n.

    Args:
      name: name of the task.
      data: cache, corpus and vocabulary, rows and noise. Without `cache_dir` the cache lies in bertfam's cache folder; without
        `vocabulary` one is learnt from the training text.
      length: tokens a row where `sequence_length` is not given.
      vocabulary_size: pieces to learn where `data.vocabulary` is None.
      layout: which control tokens these have: "bert", "t5" (with sentinels), "gpt2", ...
    """
    if data.corpus is None and data.cache_dir is None:
        raise UserError(f"task {name} needs a corpus, or a cache_dir that holds a token cache")
    if isinstance(data.corpus, Mixture):
        raise UserError(f"task {name} is of several corpora: register a task for each, and mix them in a seqio mixture")
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
# The rows and the noise of gin_configs/objectives, by the same names where there is such a file.
for _name, _data in {
    "mlm_nsp": TextData(),
    "mlm_nsp_packed": TextData(rows=Packed(SentencePairs())),
    "mlm": TextData(rows=FullSentences()),
    "mlm_whole_words": TextData(rows=FullSentences(), corruption=BertMasking(choice=WholeWords())),
    "roberta": TextData(rows=FullSentences(), corruption=BertMasking(rounding="random")),
    "mlm_sop": TextData(rows=SentencePairs(relation="order"), corruption=BertMasking(choice=WordNgrams())),
    "mlm_structure": TextData(rows=SentencePairs(relation="structure"), corruption=BertMasking(shuffling=ShuffledWindows())),
    "mlm_sbo": TextData(
        rows=DocSentences(),
        corruption=BertMasking(
            choice=WordSpans(), rounding="up", counted="maskable", drawn_by="unit", random_tokens="text", boundaries=True
        ),
    ),
    "electra": TextData(
        rows=TwoSegments(),
        corruption=BertMasking(mask_share=0.85, random_share=0.0, choice=WithReplacement(), slot_margin=0.005),
    ),
    "ernie": TextData(corruption=BertMasking(choice=Units(), drawn_by="unit")),
    "modernbert": TextData(rows=Packed(WholeDocuments()), corruption=BertMasking(rate=0.3)),
    "causal_lm": TextData(rows=Chunks(), corruption=NextTokens()),
    "t5_random_spans": TextData(rows=Chunks(separated=False), corruption=SpanCorruption()),
    "bart": TextData(rows=DocSentences(), corruption=Denoising()),
}.items():
    _corpus = MarkedText(PythonDocs(), "names") if _data.needs_units else PythonDocs()
    _layout = "t5" if isinstance(_data.corruption, SpanCorruption) else "bert"
    add_pretraining_task(f"python_docs_{_name}", dataclasses.replace(_data, corpus=_corpus), layout=_layout)
