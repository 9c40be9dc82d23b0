"""`bertfam quantize`: folders that every command reads, their size, and what is refused."""

import json

import numpy as np
import pytest
from model_folders import arrays

import bertfam
from bertfam import cli

pytest.importorskip("qwix", reason="quantised models need qwix: pip install 'bertfam[quantize]'")

DISTILLATION = [f"--gin_file={name}.gin" for name in ("models/bert_tiny", "objectives/distillation", "runs/defaults")]
TEXTS = ("a module returns the list", "the function raises it", "an object of the class")


def similarity(one, other):
    """Return the least cosine of vectors of the same text."""
    one, other = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (one, other))
    return float((one * other).sum(axis=1).min())


def size(folder):
    """Return the bytes of the saved arrays.

    The sizes of the files are no measure: those of the same small arrays differ by a tenth from one save to the next.
    """
    return sum(array.nbytes for array in arrays(folder, 0).values())


@pytest.fixture(scope="module")
def quantized(random_model, tmp_path_factory):
    """Quantise a Hugging Face folder in every way; return the folders by their flags, and that of the float model."""
    folder = tmp_path_factory.mktemp("quantized")
    (folder / "texts.tsv").write_text("\n".join(("text", *TEXTS)) + "\n")
    calibration = f"--calibration={folder / 'texts.tsv'}"
    ways = {"dynamic": [], "static": ["--activations=static", calibration], "int4": ["--activations=none", "--bits=4"]}
    for name, words in ways.items():
        assert cli.main(["quantize", f"--model_dir={random_model}", f"--output={folder / name}", *words]) == 0
    assert cli.main(["import", f"--input={random_model}", f"--output={folder / 'float'}"]) == 0
    return folder


def test_folders_are_small_and_read_as_any_other(quantized, random_model, capsys):
    exact = bertfam.load(random_model).embed(TEXTS)
    for name, least in (("dynamic", 0.97), ("static", 0.9), ("int4", 0.5)):
        model = bertfam.load(quantized / name)
        vectors = model.embed(TEXTS)
        assert least < similarity(vectors, exact) < 0.999999
        saved = arrays(quantized / name, 0)
        kernel = saved["['params']['encoder']['layers']['attention']['query']['kernel']"]
        assert str(kernel.dtype) == ("int4" if name == "int4" else "int8")
        np.testing.assert_array_equal(model.params["encoder"]["layers"]["attention"]["query"]["kernel"], kernel)
        assert size(quantized / name) < 0.45 * size(quantized / "float")
    assert cli.main(["fill", f"--model_dir={quantized / 'dynamic'}", "a [MASK] of it"]) == 0
    assert "of it" in capsys.readouterr().out


def test_scores_on_held_out_text_hardly_change(trained, tmp_path, capsys):
    words = ["quantize", f"--model_dir={trained.model_dir}", "--keep=*/word/table", f"--output={tmp_path / 'int8'}"]
    assert cli.main(words) == 0
    line, sizes = capsys.readouterr().out.splitlines()
    assert line.startswith(f"quantized {trained.model_dir} to {tmp_path / 'int8'}: 6 kernels of all layers in int8")
    assert sizes.startswith("parameters ") and sizes.endswith(" MB")
    assert "['params']['encoder']['embeddings']['word']['table_scale']" not in arrays(tmp_path / "int8", 0)
    scores = []
    for folder in (trained.model_dir, tmp_path / "int8"):
        cache = f"--cache_dir={trained.model_dir / 'cache'}"
        assert cli.main(["evaluate", f"--model_dir={folder}", cache, "--batches=2", "--json"]) == 0
        scores.append(json.loads(capsys.readouterr().out)["mlm_loss"])
    assert scores[1] == pytest.approx(scores[0], abs=0.02) and scores[1] != scores[0]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["quantize", "--model_dir={int8}", "--output={new}"], ("{int8}", "quantised", "made from")),
        (["export", "--model_dir={int8}", "--output={new}"], ("{int8}", "quantised", "export")),
        (["distill", *DISTILLATION, "--teacher={int8}", "--model_dir={new}", "--cache_dir={new}"], ("{int8}", "quantised")),
        (["merge", "--model_dir={int8}@0", "--model_dir={float}@0", "--output={new}", "--skip_evaluation"], ("{int8}", "merge")),
        (["finetune", "--init_from={int8}", "--train={labels}", "--model_dir={new}"], ("{int8}", "quantised", "train")),
        (["quantize", "--model_dir={float}", "--output={new}", "--keep=*/keys"], ("--keep=*/keys", "encoder/")),
        (["quantize", "--model_dir={float}", "--output={new}", "--keep=*"], ("--keep", "no kernels")),
        (["quantize", "--model_dir={float}", "--output={new}", "--bits=4"], ("--bits=4", "--activations=none")),
        (["quantize", "--model_dir={float}", "--output={new}", "--activations=static"], ("--calibration",)),
        (["quantize", "--model_dir={float}", "--output={new}", "--calibration={labels}"], ("--calibration", "dynamic")),
        (["quantize", "--model_dir={float}", "--output={int8}"], ("{int8}",)),
    ],
)
def test_mistakes(quantized, tmp_path, capsys, words, named):
    (tmp_path / "labels.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{i % 2}\n" for i, text in enumerate(TEXTS * 8)))
    paths = {"int8": quantized / "dynamic", "float": quantized / "float", "new": tmp_path / "new"}
    paths |= {"labels": tmp_path / "labels.tsv"}
    capsys.readouterr()
    assert cli.main([word.format(**paths) for word in words]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("bertfam: error:")]
    assert all(word.format(**paths) in line for word in named), line
    assert not (tmp_path / "new").exists()


def test_a_run_that_would_store_integers_is_refused(trained, tmp_path, capsys):
    assert cli.main([*trained.pretrain(tmp_path / "new"), "--gin.Run.quantization=@Quantization()"]) == 2
    assert "Run.quantization" in capsys.readouterr().err and not (tmp_path / "new").exists()


def test_training_for_it_and_predictions(random_model, tmp_path, capsys, caches_in_process):
    labels = tmp_path / "labels.tsv"
    rows = [f"the {noun} {verb} it\t{verb}" for noun in ("list", "class", "module", "value") for verb in ("returns", "raises")]
    labels.write_text("\n".join(("text\tlabel", *rows * 4)) + "\n")
    train = [f"--train={labels}", "--epochs=1", "--batch_size=8", "--length=16"]
    run, int8 = tmp_path / "run", tmp_path / "int8"
    assert cli.main(["finetune", f"--init_from={random_model}", *train, "--quantize", f"--model_dir={run}"]) == 0
    assert cli.main(["quantize", f"--model_dir={run}", f"--output={int8}"]) == 0
    assert "FineTuning.quantization = None" in (int8 / "config.gin").read_text()
    texts = [row.split("\t")[0] for row in rows]
    trained, quantized = (bertfam.load(folder).predictor.outputs([(text,) for text in texts], 8) for folder in (run, int8))
    # The products differ by rounding alone; word tables, which training does not round, by half a step.
    assert np.abs(trained - quantized).mean() < 0.1 * np.abs(trained).mean()
    assert cli.main(["predict", f"--model_dir={int8}", f"--input={labels}", "--label=label"]) == 0
    assert "accuracy" in capsys.readouterr().out
    lora = ["--quantize", "--lora=2", f"--model_dir={tmp_path / 'both'}"]
    assert cli.main(["finetune", f"--init_from={random_model}", *train, *lora]) == 2
    assert "FineTuning.lora" in capsys.readouterr().err
