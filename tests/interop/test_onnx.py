"""`bertfam export --onnx`: onnxruntime computes what the model does, in float32 and, nearly, in int8."""

import dataclasses

import numpy as np
import pytest
import test_decoder_commands
import test_encoder_decoder_commands

import bertfam
from bertfam import cli
from bertfam.errors import UserError
from bertfam.interop import onnx

for package in ("onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="ONNX files need more packages: pip install 'bertfam[onnx]'")


def test_onnxruntime_computes_what_the_model_does(random_model, tmp_path, capsys):
    import onnxruntime

    model_dir, folder = tmp_path / "model", tmp_path / "exported"
    assert cli.main(["import", f"--input={random_model}", f"--output={model_dir}"]) == 0
    assert cli.main(["export", f"--model_dir={model_dir}", f"--output={folder}", "--onnx"]) == 0
    assert "model.onnx in float32: outputs prediction_logits, seq_relationship_logits" in capsys.readouterr().out
    tokens = np.random.default_rng(0).integers(5, 1000, (3, 21))
    segment_ids = (np.arange(21) < [[21], [9], [1]]).astype(np.int64)
    tokens, types = tokens * segment_ids, segment_ids * (np.arange(21) > 5)
    own = bertfam.load(model_dir).apply(tokens, segment_ids=segment_ids, token_type_ids=types)
    expected = {"mlm": np.asarray(own["mlm_logits"])[segment_ids > 0], "nsp": np.asarray(own["nsp_logits"])}

    def outputs():
        session = onnxruntime.InferenceSession(str(folder / onnx.FILE), providers=["CPUExecutionProvider"])
        inputs = {"input_ids": tokens, "attention_mask": segment_ids, "token_type_ids": types}
        assert {entry.name for entry in session.get_inputs()} == inputs.keys()
        words, sentences = session.run(None, inputs)
        return {"mlm": words[..., : expected["mlm"].shape[-1]][segment_ids > 0], "nsp": sentences}

    for name, value in outputs().items():
        np.testing.assert_allclose(value, expected[name], atol=1e-3, rtol=1e-4)
    size = (folder / onnx.FILE).stat().st_size
    onnx._quantize(folder / onnx.FILE)
    assert (folder / onnx.FILE).stat().st_size < 0.6 * size
    for name, value in outputs().items():
        assert 1e-4 < np.abs(value - expected[name]).mean() < 0.25 * np.abs(expected[name]).mean()


def exported(folder, tmp_path, capsys):
    """Import a Hugging Face folder and export it again; return the loaded model and the session of onnxruntime."""
    import onnxruntime

    model_dir, out = tmp_path / "model", tmp_path / "exported"
    assert cli.main(["import", f"--input={folder}", f"--output={model_dir}"]) == 0
    assert cli.main(["export", f"--model_dir={model_dir}", f"--output={out}", "--onnx"]) == 0
    assert "model.onnx in float32: outputs logits" in (printed := capsys.readouterr().out)
    assert "; without a cache of keys and values" in printed
    return bertfam.load(model_dir), onnxruntime.InferenceSession(str(out / onnx.FILE), providers=["CPUExecutionProvider"])


def rows(size, lengths, seed):
    """Return random tokens and segment ids int64[rows, length], with padding at the end."""
    length = max(lengths)
    segment_ids = (np.arange(length) < np.array(lengths)[:, None]).astype(np.int64)
    return np.random.default_rng(seed).integers(3, size, segment_ids.shape), segment_ids


@pytest.mark.parametrize("layout", ["gpt2", "roberta"])  # a GPT-2 and an OPT
def test_onnxruntime_computes_the_logits_of_causal_lms(layout, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(test_decoder_commands.SIZES, "num_layers", 1)
    test_decoder_commands.write_model(tmp_path / "theirs", layout)
    model, session = exported(tmp_path / "theirs", tmp_path, capsys)
    tokens, segment_ids = rows(model.vocabulary.size, [11, 4, 1], 0)
    assert {entry.name for entry in session.get_inputs()} == {"input_ids", "attention_mask"}
    (logits,) = session.run(None, {"input_ids": tokens, "attention_mask": segment_ids})
    expected = np.asarray(model.apply(tokens, segment_ids=segment_ids)["logits"])
    is_token = segment_ids > 0
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(logits[is_token][:, : expected.shape[-1]], expected[is_token], atol=1e-4, rtol=1e-5)


def test_onnxruntime_computes_the_logits_of_encoder_decoders(tmp_path, capsys, monkeypatch):
    one_layer = dataclasses.replace(test_encoder_decoder_commands.CONFIGS["T5"], num_layers=1, num_encoder_layers=1)
    monkeypatch.setitem(test_encoder_decoder_commands.CONFIGS, "T5", one_layer)
    vocabulary = test_encoder_decoder_commands.train_vocabulary("T5")
    test_encoder_decoder_commands.write_model(tmp_path / "theirs", "T5", vocabulary)
    model, session = exported(tmp_path / "theirs", tmp_path, capsys)
    (source, source_ids), (tokens, _) = rows(model.vocabulary.size, [9, 3], 0), rows(model.vocabulary.size, [6, 6], 1)
    inputs = {"input_ids": source, "attention_mask": source_ids, "decoder_input_ids": tokens}
    assert {entry.name for entry in session.get_inputs()} == inputs.keys()
    logits = session.run(["logits"], inputs)[0]
    expected = np.asarray(model.apply(tokens, encoder_tokens=source, encoder_segment_ids=source_ids)["logits"])
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(logits[..., : expected.shape[-1]], expected, atol=1e-4, rtol=1e-5)


def test_classifiers_on_encoder_decoders_are_refused():
    onnx.check_class("model", "decoder", ["embeddings", "decoder", "classifier"])
    with pytest.raises(UserError, match="--onnx: model is a classifier on an encoder-decoder"):
        onnx.check_class("model", "encoder_decoder", ["embeddings", "encoder", "decoder", "classifier"])
