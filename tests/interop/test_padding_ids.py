"""RoBERTa folders whose pad_token_id is not the padding id of their tokenizer."""

import json

import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

import bertfam
from bertfam.cli import main
from bertfam.data.vocabularies.byte_bpe import ByteBpe
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.data.vocabularies.wordpiece import SPECIAL_PIECES, WordPiece
from bertfam.interop import huggingface
from bertfam.models import roberta

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LAYOUT = LAYOUTS["roberta"]
BYTES = sorted(ByteLevel.alphabet())
BPE = ByteBpe([*LAYOUT.first, *BYTES, *LAYOUT.last], [], layout=LAYOUT)
# <pad> first, as in folders that were trained with another tool, and a control piece that stands in no text
MOVED = ByteBpe(["<pad>", "<unk>", "<s>", "</s>", *BYTES, *LAYOUT.last], [], layout=LAYOUT)
WORDS = WordPiece([*SPECIAL_PIECES, *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh")])
TEXTS = ["a bad cab", "bed", "a fad, a deaf cab, a face"]


def write_folder(folder, vocabulary, pad, rows=40):
    """Write a RoBERTa whose tables are all different, with a tokenizer."""
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=vocabulary.size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=rows,
        type_vocab_size=1,
        pad_token_id=pad,
    )
    model = transformers.RobertaForMaskedLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.4)
    model.save_pretrained(folder)
    vocabulary.save(folder)
    return model


def their_logits(folder):
    """Return the logits at the tokens of a padded batch, by transformers."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    batch = transformers.AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    return batch, logits[batch.attention_mask > 0].numpy()


def our_logits(folder, batch):
    model = bertfam.load(folder)
    segment_ids = batch.attention_mask.numpy()
    logits = np.asarray(model.apply(batch.input_ids.numpy(), segment_ids=segment_ids)["mlm_logits"])
    return logits[segment_ids > 0][:, : model.config.vocab_size]


@pytest.mark.parametrize(
    ("vocabulary", "pad", "offset"),
    [(BPE, 1, 2), (BPE, 0, 0), (BPE, 3, 4), (MOVED, 0, 1), (MOVED, 1, 2), (WORDS, 0, 1)],
)
def test_pad_token_id_is_exported_as_it_came(vocabulary, pad, offset):
    content = {"model_type": "roberta", "vocab_size": vocabulary.size, "pad_token_id": pad, "max_position_embeddings": 40}
    content |= {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    config = huggingface.with_vocabulary(roberta.config_from_huggingface(content), vocabulary, "folder")
    assert (config.position_offset, config.position_rows) == (offset, 40)
    assert huggingface.special_ids(config, vocabulary)["pad_token_id"] == pad


@pytest.mark.parametrize(("vocabulary", "pad", "offset"), [(BPE, 0, 0), (MOVED, 1, 2)], ids=["first token", "unused"])
def test_logits_of_a_padded_batch_survive_import_and_export(tmp_path, vocabulary, pad, offset):
    theirs, model_dir, out = tmp_path / "theirs", tmp_path / "model", tmp_path / "out"
    write_folder(theirs, vocabulary, pad)
    assert main(["import", f"--input={theirs}", f"--output={model_dir}"]) == 0
    assert main(["export", f"--model_dir={model_dir}", f"--output={out}"]) == 0
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (theirs, out))
    assert after["pad_token_id"] == before["pad_token_id"] == pad
    assert after["max_position_embeddings"] == before["max_position_embeddings"]
    batch, expected = their_logits(theirs)
    assert np.array_equal(their_logits(out)[1], expected)
    for folder in (theirs, model_dir):
        assert bertfam.load(folder).config.position_offset == offset
        np.testing.assert_allclose(our_logits(folder, batch), expected, atol=1e-3)


@pytest.mark.parametrize(("vocabulary", "pad"), [(BPE, 2), (BPE, 7), (WORDS, 1), (WORDS, 7)])
def test_padding_ids_of_tokens_in_texts_are_refused(tmp_path, capsys, vocabulary, pad):
    write_folder(tmp_path / "theirs", vocabulary, pad)
    capsys.readouterr()
    assert main(["import", f"--input={tmp_path / 'theirs'}", f"--output={tmp_path / 'model'}"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("bertfam")]
    assert f"pad_token_id = {pad} " in line and f", {vocabulary.token_ids.pad}," in line
    assert not (tmp_path / "model").exists()
