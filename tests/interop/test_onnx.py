"""`bertfam export --onnx`: onnxruntime computes what the model does, in float32 and, nearly, in int8."""

import numpy as np
import pytest

import bertfam
from bertfam import cli
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
