"""Vocabularies for seqio, compared with seqio's own."""

import pickle

import numpy as np
import pytest
from late_import import late_import

from bertfam.data.vocabularies.byte_bpe import ByteBpe
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.data.vocabularies.sentence_piece.vocabulary import SentencePiece

seqio, tf, seqio_vocabulary = map(late_import, ("seqio", "tensorflow", "bertfam.data.seqio_tasks.vocabulary"))

SENTINELS = ["<extra_id_0>. Hello", "<extra_id_0> .", "No <extra_id_0> He", "a <extra_id_99> b <extra_id_1>ly", "<extra_id_100>"]


@pytest.fixture(scope="module")
def texts(corpus):
    return [sentence for document in corpus.documents("validation") for sentence in document][::4] + ["日本 café …  x ", ""]


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def folder(request, corpus, tmp_path_factory):
    sentences = [sentence for document in corpus.documents("train") for sentence in document][:1000]
    vocabulary = SentencePiece.train(sentences, kind=request.param, size=900, layout=LAYOUTS["t5"])
    path = tmp_path_factory.mktemp("vocabulary")
    vocabulary.save(path)
    return path


def test_piece_vocabulary_equals_that_of_seqio(folder, texts):
    theirs = seqio.SentencePieceVocabulary(str(folder / "spiece.model"), extra_ids=100)
    plain, prompts = seqio_vocabulary.PieceVocabulary(str(folder)), seqio_vocabulary.PieceVocabulary(str(folder), prompts=True)
    for name in ("vocab_size", "extra_ids", "pad_id", "eos_id", "unk_id"):
        assert getattr(plain, name) == getattr(theirs, name), name
    for text in texts:
        ids = list(theirs.encode(text))
        assert plain.encode(text) == prompts.encode(text) == ids
        assert plain.encode_tf(tf.constant(text)).numpy().tolist() == theirs.encode_tf(tf.constant(text)).numpy().tolist() == ids
        ids = [*ids[:3], plain.vocab_size - 1, plain.unk_id, *ids[3:], plain.eos_id, plain.pad_id, 5]
        assert plain.decode(ids) == theirs.decode(ids)
        array = np.array(ids, np.int32)
        assert plain.decode_tf(array).numpy() == theirs.decode_tf(array).numpy()
    batch = np.array([[5, 6, 1, 7], [8, 9, 10, 0]], np.int32)
    assert plain.decode_tf(tf.constant(batch)).numpy().tolist() == theirs.decode_tf(tf.constant(batch)).numpy().tolist()
    for text in SENTINELS:
        assert prompts.encode(text) == list(theirs.encode(text)), text
        assert not set(plain.encode(text)) & set(range(plain.vocab_size - 100, plain.vocab_size))


def test_vocabulary_of_any_kind_in_a_dataset(corpus, tmp_path, texts):
    sentences = (sentence for document in corpus.documents("train") for sentence in document)
    byte_bpe = ByteBpe.train(sentences, size=500)
    byte_bpe.save(tmp_path)
    vocabulary = seqio_vocabulary.PieceVocabulary(str(tmp_path))
    dataset = tf.data.Dataset.from_tensor_slices(texts).map(vocabulary.encode_tf)
    for text, ids in zip(texts, dataset.as_numpy_iterator(), strict=True):
        assert ids.tolist() == byte_bpe.encode_batch([text])[0].tolist() and vocabulary.decode(ids) == text
    again = pickle.loads(pickle.dumps(vocabulary))
    assert again == vocabulary and again.encode("a b") == vocabulary.encode("a b")
    assert vocabulary != seqio_vocabulary.PieceVocabulary(str(tmp_path), prompts=True)
    assert seqio_vocabulary.PieceVocabulary(str(tmp_path), prompts=True).encode("<mask> a")[0] == byte_bpe.size - 1
