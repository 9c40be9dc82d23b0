"""ELECTRA by the command line: two networks are trained together, inspected, exported, imported and fill masks."""

import json

import numpy as np
import pytest
from command_line import in_process
from initial_state import initial_state
from safetensors.numpy import load_file

from bertfam import api, cli
from bertfam.training.model_dir import open_model

RUN = """\
include "objectives/electra.gin"
include "runs/defaults.gin"
TRAIN_STEPS = 4
EVAL_EVERY = 4
CHECKPOINT_EVERY = 4
BATCH_SIZE = 8
Stage.length = 24
Execution.layers = "unroll"
Run.average_decay = 0.5
Run.inspect_every = 4
Run.sample_every = 4
LinearDecay.peak = 1e-2
LinearDecay.warmup_steps = 1
MODEL = @ElectraConfig()
ElectraConfig.num_layers = 1
ElectraConfig.hidden_size = 32
ElectraConfig.num_heads = 2
ElectraConfig.feed_forward_size = 48
ElectraConfig.embedding_size = 20
ElectraConfig.max_length = 24
"""
METRICS = {"mlm_loss", "mlm_accuracy", "rtd_loss", "rtd_accuracy", "rtd_precision", "rtd_recall", "rtd_majority_accuracy"}


@pytest.fixture(scope="module")
def model_dir(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("electra")
    (folder / "run.gin").write_text(RUN)
    cache = f"--cache_dir={trained.model_dir / 'cache'}"
    done = in_process("pretrain", f"--gin_file={folder / 'run.gin'}", cache, f"--model_dir={folder / 'model'}")
    assert done.returncode == 0, done.stderr
    return folder / "model"


@pytest.fixture(scope="module")
def exported(model_dir):
    assert cli.main(["export", f"--model_dir={model_dir}", f"--output={model_dir.parent / 'theirs'}", "--average"]) == 0
    return model_dir.parent / "theirs"


def test_metrics_and_inspections_of_both_networks(model_dir, capsys):
    lines = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    splits = {line["split"]: line for line in lines}
    assert METRICS - {"rtd_precision"} <= splits["train"].keys() & splits["eval"].keys() & splits["eval_average"].keys()
    inspected = {"activation_rms/discriminator/01", "activation_rms/generator/01", "gradient_norm/embeddings/word"}
    assert inspected | {"gradient_norm/generator/layers/00", "update_norm/discriminator/layers/00"} <= splits["inspect"].keys()
    assert splits["eval"]["loss"] != splits["eval_average"]["loss"]
    assert cli.main(["evaluate", f"--model_dir={model_dir}", "--json", "--baselines", "--average"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unigram_loss"] > 0 and "most_frequent_accuracy" in found and "nsp_majority_accuracy" not in found
    expected = {name: value for name, value in splits["eval_average"].items() if name != "split"}
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_both_networks_are_exported_and_load(model_dir, exported, capsys):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    assert sorted(path.name for path in exported.iterdir()) == ["discriminator", "generator"]
    for name, cls, width in (("discriminator", "ElectraForPreTraining", 32), ("generator", "ElectraForMaskedLM", 8)):
        config = json.loads((exported / name / "config.json").read_text())
        assert (config["architectures"], config["hidden_size"], config["embedding_size"]) == ([cls], width, 20)
        model, info = getattr(transformers, cls).from_pretrained(exported / name, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    tables = [load_file(exported / name / "model.safetensors") for name in ("discriminator", "generator")]
    shared = "electra.embeddings.word_embeddings.weight"
    assert np.array_equal(tables[0][shared], tables[1][shared])

    # Masks are filled by the generator, here and there, also of the run's folder.
    text = "The [MASK] of a function."
    capsys.readouterr()
    assert cli.main(["fill", f"--model_dir={exported / 'generator'}", "--json", text]) == 0
    ours = json.loads(capsys.readouterr().out)[0]["masks"][0]["predictions"]
    pipeline = transformers.pipeline("fill-mask", str(exported / "generator"))
    theirs = pipeline(text)
    assert [found["token"] for found in theirs] == [found["token_id"] for found in ours]
    np.testing.assert_allclose([found["score"] for found in theirs], [found["probability"] for found in ours], rtol=1e-3)
    assert cli.main(["fill", f"--model_dir={model_dir}", "--json", text]) == 0
    assert len(json.loads(capsys.readouterr().out)[0]["masks"][0]["predictions"]) == 5


def test_a_discriminator_cannot_fill(exported, tmp_path, capsys):
    """Nor can an imported one, which is exported as it was."""
    line = (
        "bertfam: error: the model is a discriminator, which detects replaced tokens and predicts none, so it cannot "
        "fill; give the folder of its generator, or of the run that trained both\n"
    )
    folder, out, model_dir = exported / "discriminator", tmp_path / "out", tmp_path / "model"
    assert cli.main(["import", f"--input={folder}", f"--output={model_dir}"]) == 0
    for asked in (folder, model_dir):
        capsys.readouterr()
        assert cli.main(["fill", f"--model_dir={asked}", "A [MASK]."]) == 2
        assert capsys.readouterr() == ("", line)
    assert cli.main(["export", f"--model_dir={model_dir}", f"--output={out}"]) == 0
    before, after = (load_file(path / "model.safetensors") for path in (folder, out))
    assert before.keys() == after.keys() and all(np.array_equal(before[name], after[name]) for name in before)
    rows = np.array([[2, 7, 8, 9, 3]])
    logits = [api.load(where).apply(rows)["rtd_logits"] for where in (folder, model_dir)]
    assert logits[0].shape == (1, 5) and np.array_equal(*logits)


def test_a_generator_is_imported_as_a_masked_language_model(exported, tmp_path, capsys):
    folder, model_dir = exported / "generator", tmp_path / "model"
    assert cli.main(["import", f"--input={folder}", f"--output={model_dir}"]) == 0
    assert type(open_model(model_dir).run.objective).__name__ == "Mlm"
    found = []
    for asked in (folder, model_dir):
        capsys.readouterr()
        assert cli.main(["fill", f"--model_dir={asked}", "--json", "A [MASK]."]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]


def test_a_new_run_starts_from_either_network(trained, model_dir, exported, tmp_path):
    """A run's folder has both, a discriminator's folder one."""
    flags = [f"--gin_file={model_dir.parent / 'run.gin'}", f"--cache_dir={trained.model_dir / 'cache'}"]
    for source, parts in (
        (model_dir, ["discriminator", "embeddings", "generator", "mlm_head", "rtd_head"]),
        (exported / "discriminator", ["discriminator", "embeddings", "rtd_head"]),
    ):
        model = api.load(source)
        out, state = initial_state("pretrain", *flags, f"--model_dir={tmp_path / 'new'}", f"--init_from={source}")
        assert f"starts from {source}: {', '.join(parts)}; of 300 tokens all keep their rows" in out
        new, theirs = state.params["discriminator"]["layers"], model.params["encoder"]["layers"]
        assert np.array_equal(*(layers["feed_forward"]["output"]["kernel"] for layers in (new, theirs)))
    assert api.load(model_dir, network="generator").config.hidden_size == 8
