"""ONNX files of exported models, written by PyTorch's exporter from the class of transformers.

jax2onnx (version 0.11) was considered, which exports the JAX program itself: it pins an orbax older than the checkpoints' one.
"""

import inspect
import json
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from bertfam.errors import UserError
from bertfam.models.mapping import CLASSIFIER
from bertfam.models.network import Kind

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


def check_class(name: str, kind: Kind, parts: Collection[str]) -> None:
    """Raise UserError for a class that PyTorch's exporter does not trace.

    Args:
      name: of the folder or the network, for the message.
      kind: of the network.
      parts: names of its parameters.
    """
    if kind == "encoder_decoder" and CLASSIFIER in parts:
        raise UserError(
            f"--onnx: {name} is a classifier on an encoder-decoder, whose class in transformers looks for the end of the text in "
            "each row, which PyTorch does not export; leave --onnx out"
        )


def write(folder: Path, precision: Precision, kind: Kind = "encoder") -> list[str]:
    """Write the ONNX file of a Hugging Face folder into it.

    Its inputs are int64[batch, length], of any number of rows and tokens: input_ids, attention_mask and, where the class reads
    them, token_type_ids and decoder_input_ids. Padding is at the end of rows. With "int8" kernels are int8, and onnxruntime
    computes the ranges of their inputs for each call. A causal LM or an encoder-decoder returns the logits of all tokens; it has
    no cache of keys and values, so each further token computes the whole row again.

    Args:
      folder: a folder that `bertfam.interop.huggingface.write` wrote.
      precision: of the products.
      kind: of the network.

    Returns:
      the names of the outputs.
    """
    import onnxruntime

    _export(folder, kind == "encoder")
    if precision == "int8":
        _quantize(folder / FILE)
    session = onnxruntime.InferenceSession(str(folder / FILE), providers=["CPUExecutionProvider"])
    return [output.name for output in session.get_outputs()]


def _export(folder: Path, token_types: bool) -> None:
    import torch
    import transformers

    (architecture,) = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"]
    model = getattr(transformers, architecture).from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    for module in model.modules():  # the two stacks of an encoder-decoder have configs of their own
        if hasattr(module, "config"):
            module.config.use_cache = False
    # To GPT, token types are further words.
    read = inspect.signature(model.forward).parameters.keys() - (set() if token_types else {"token_type_ids"})
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
