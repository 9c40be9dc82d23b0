"""ONNX files of exported models, written by PyTorch's exporter from the class of transformers.

jax2onnx (version 0.11) was considered, which exports the JAX program itself: it pins an orbax older than the checkpoints' one.
"""

import inspect
import json
import warnings
from pathlib import Path
from typing import Any, Literal

from bertfam.errors import UserError

Precision = Literal["float32", "int8"]
FILE = "model.onnx"
_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "decoder_input_ids")
_EXAMPLE = (2, 8)  # rows and tokens of the inputs that the model is traced with


def check_installed() -> None:
    """Raise UserError if a package is missing that writes ONNX files."""
    try:
        import onnx
        import onnxruntime
        import onnxscript
        import torch
        import transformers
    except ModuleNotFoundError as error:
        raise UserError(f"--onnx needs {error.name}: pip install 'bertfam[onnx]'") from error
    assert all((onnx, onnxruntime, onnxscript, torch, transformers))


def write(folder: Path, precision: Precision) -> list[str]:
    """Write the ONNX file of a Hugging Face folder into it.

    Its inputs are int64[batch, length], of any number of rows and tokens: input_ids, attention_mask and, where the class reads
    them, token_type_ids and decoder_input_ids. With "int8" kernels are int8, and onnxruntime computes the ranges of their inputs
    for each call.

    Args:
      folder: a folder that `bertfam.interop.huggingface.write` wrote.
      precision: of the products.

    Returns:
      the names of the outputs.
    """
    import onnxruntime

    _export(folder)
    if precision == "int8":
        _quantize(folder / FILE)
    session = onnxruntime.InferenceSession(str(folder / FILE), providers=["CPUExecutionProvider"])
    return [output.name for output in session.get_outputs()]


def _export(folder: Path) -> None:
    import torch
    import transformers

    (architecture,) = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"]
    model = getattr(transformers, architecture).from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    model.config.use_cache = False
    read = inspect.signature(model.forward).parameters
    inputs = {name: torch.ones(_EXAMPLE, dtype=torch.int64) for name in _INPUTS if name in read}
    with torch.no_grad():
        outputs = list(model(**inputs).keys())
    batch, longest = torch.export.Dim("batch"), getattr(model.config, "max_position_embeddings", None)
    lengths = {name: torch.export.Dim("target" if name.startswith("decoder") else "length", max=longest) for name in inputs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch's own deprecated calls
        program: Any = torch.onnx.export(
            model,
            (),
            kwargs=inputs,
            input_names=list(inputs),
            output_names=outputs,
            dynamic_shapes={name: {0: batch, 1: length} for name, length in lengths.items()},
            dynamo=True,
            verbose=False,
        )
    program.save(str(folder / FILE))


def _quantize(path: Path) -> None:
    """Replace an ONNX file by one whose kernels are int8."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantized = path.with_suffix(".int8")
    quantize_dynamic(path, quantized, weight_type=QuantType.QInt8, per_channel=True)
    quantized.replace(path)
