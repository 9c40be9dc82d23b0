"""`bertfam analyze importance` and `bertfam prune`: from a run to a report, and to a model that every command reads."""

import json
from contextlib import redirect_stdout
from io import StringIO

import numpy as np
import pytest
from model_folders import arrays

from bertfam import cli
from bertfam.commands.prune_run import kept_layers
from bertfam.objectives.fine_tuning.gates import HeadGates
from bertfam.training.model_dir import read_run


def params(model_dir, step):
    """The parameters of a checkpoint by name."""
    return {name: value for name, value in arrays(model_dir, step).items() if name.startswith("['params']")}


def finetune(source, folder):
    """Return the command line that fine-tunes a model for four updates, into the folder `tuned`."""
    texts = [f"{verb} the {noun}\t{verb}" for noun in ("list", "class", "module", "value") for verb in ("returns", "raises")]
    (folder / "labels.tsv").write_text("\n".join(("text\tlabel", *texts * 4)) + "\n")
    (folder / "dev.tsv").write_text("\n".join(("text\tlabel", *(f"it {text}" for text in texts))) + "\n")
    files = [f"--train={folder / 'labels.tsv'}", f"--validation={folder / 'dev.tsv'}", f"--model_dir={folder / 'tuned'}"]
    return ["finetune", f"--init_from={source}", *files, "--epochs=1", "--batch_size=8", "--length=16"]


@pytest.fixture(scope="module")
def report(trained, tmp_path_factory):
    """Return the report and the page of the run."""
    page = tmp_path_factory.mktemp("page") / "importance.html"
    words = ["analyze", "importance", f"--model_dir={trained.model_dir}", "--batches=2", "--curve", f"--output={page}"]
    with redirect_stdout(StringIO()) as printed:
        assert cli.main([*words, "--json"]) == 0
    return json.loads(printed.getvalue()), page.read_text()


def test_importance(report, trained):
    found, page = report
    assert (found["rows"], found["split"]) == (16, "train")
    assert [(own["layer"], own["head"]) for own in found["heads"]] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for layer in (1, 2):
        values = [own["normalised"] for own in found["heads"] if own["layer"] == layer]
        assert np.linalg.norm(values) == pytest.approx(1) and min(values) > 0
    by_order = {order: [one for one in found["curve"] if one["order"] == order] for order in ("importance", "random")}
    lines = [json.loads(line) for line in (trained.model_dir / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["split"] == "eval"][-1]
    for points in by_order.values():
        assert [one["removed"] for one in points] == [0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4]
        assert points[0]["scores"]["loss"] == pytest.approx(last["loss"], rel=1e-5)
        assert points[-1]["scores"] == by_order["random"][-1]["scores"]
    assert page.count("<path class=") == 2 * len(last_scores(by_order)) and "<script" not in page


def last_scores(by_order):
    return by_order["random"][-1]["scores"]


def test_prune(trained, tmp_path, capsys, caches_in_process):
    source, out = trained.model_dir, tmp_path / "small"
    removed = ["--layers=1", "--drop=bottom", "--heads=0.5", "--neurons=0.25", "--weights=0.1"]
    assert cli.main(["prune", f"--model_dir={source}", f"--output={out}", "--batches=1", *removed]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "removed 1 layer: the encoder keeps 2",
        "removed 1 of 2 heads of each layer",
        "removed 8 of 32 neurons of each feed-forward network",
        "removed 10% of the weights in the layers' kernels, by magnitude in the model",
    ]
    model = read_run(out).objective.model
    assert (model.num_layers, model.num_heads, model.head_size, model.feed_forward_size) == (1, 1, 8, 24)
    record = json.loads((out / "prune.json").read_text())
    kernel = "['params']['encoder']['layers']['attention']['query']['kernel']"
    found, whole = params(out, 0)[kernel], params(source, 24)[kernel]
    assert found.shape == (1, 16, 1, 8) and any(
        np.array_equal(np.where(found[0, :, 0] == 0, 0, whole[1, :, head]), found[0, :, 0]) for head in range(2)
    )
    assert record["after"]["parameters"] == sum(value.size for value in params(out, 0).values()) < record["before"]["parameters"]
    # It is a model like any other, and its export has all heads, with the same outputs.
    assert cli.main(["export", f"--model_dir={out}", f"--output={tmp_path / 'exported'}"]) == 0
    assert json.loads((tmp_path / "exported/config.json").read_text())["num_attention_heads"] == 2
    assert cli.main(["import", f"--input={tmp_path / 'exported'}", f"--output={tmp_path / 'back'}"]) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", f"--model_dir={tmp_path / 'back'}", f"--cache_dir={source}/cache", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["mlm_loss"] == pytest.approx(record["after"]["scores"]["mlm_loss"], rel=1e-5)
    # Fine-tuned, it stays as small, and its zeros stay zero.
    assert cli.main([*finetune(out, tmp_path), "--gin.AdamW.sparsity=@Sparsity()"]) == 0
    tuned = read_run(tmp_path / "tuned")
    assert tuned.objective.model == model
    new = params(tmp_path / "tuned", tuned.total_steps)[kernel]
    np.testing.assert_array_equal(new == 0, found == 0)
    assert (found == 0).any() and not np.array_equal(new, found)


def test_masked(trained, report, tmp_path, capsys):
    source, out = trained.model_dir, tmp_path / "masked"
    words = ["prune", f"--model_dir={source}", f"--output={out}", "--batches=2", "--heads=0.25", "--form=masked"]
    assert cli.main([*words, "--skip_evaluation", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["after"]["zeros"] > 16 * 8 * 4
    least = min(report[0]["heads"], key=lambda own: own["normalised"])
    found, whole = params(out, 0), params(source, 24)
    changed = {name for name, value in found.items() if not np.array_equal(value, whole[name])}
    assert changed == {
        f"['params']['encoder']['layers']['attention']['{name}']['{leaf}']"
        for name, leaf in [(name, leaf) for name in ("query", "key", "value") for leaf in ("kernel", "bias")]
        + [("output", "kernel")]
    }
    kernel = found["['params']['encoder']['layers']['attention']['output']['kernel']"]
    assert not kernel[least["layer"] - 1, least["head"] - 1].any()
    assert (out / "config.gin").read_text() == (source / "config.gin").read_text()


def test_closed_gates(trained, tmp_path, capsys, caches_in_process, monkeypatch):
    assert cli.main([*finetune(trained.model_dir, tmp_path), "--gin.FineTuning.gates=@HeadGates()"]) == 0
    assert "open_heads" in capsys.readouterr().out
    words = ["prune", f"--model_dir={tmp_path / 'tuned'}"]
    assert cli.main([*words, "--heads=0.5", f"--output={tmp_path / 'none'}"]) == 2
    assert "--gates removes the closed ones" in capsys.readouterr().err and not (tmp_path / "none").exists()
    gates = np.array([[0.0, 0.5], [1.0, 0.0]], np.float32)
    monkeypatch.setattr(HeadGates, "values", lambda self, params, key=None: {("encoder", "layers", "attention"): gates})
    assert cli.main([*words, "--gates", f"--output={tmp_path / 'compact'}"]) == 0
    assert "label_loss" in capsys.readouterr().out
    record = json.loads((tmp_path / "compact/prune.json").read_text())
    assert record["removed"] == ["2 of 4 heads, whose gates are closed; each layer keeps 1, zeros among them"]
    assert record["after"]["scores"]["label_loss"] == pytest.approx(record["before"]["scores"]["label_loss"], rel=1e-5)
    run = read_run(tmp_path / "compact")
    assert (run.objective.gates, run.objective.model.num_heads) == (None, 1)
    assert cli.main([*words, "--gates", "--form=masked", f"--output={tmp_path / 'masked'}", "--skip_evaluation"]) == 0
    kernel, step = "['params']['encoder']['layers']['attention']['output']['kernel']", read_run(tmp_path / "tuned").total_steps
    whole, found = params(tmp_path / "tuned", step)[kernel], params(tmp_path / "masked", 0)[kernel]
    np.testing.assert_array_equal(found, whole * gates[..., None, None])


def test_kept_layers():
    assert kept_layers(12, 6, "top") == [0, 1, 2, 3, 4, 5]
    assert kept_layers(12, 6, "alternate") == [0, 2, 4, 6, 8, 10]
    assert kept_layers(12, 4, "symmetric") == [0, 1, 2, 3, 8, 9, 10, 11]
    assert kept_layers(6, 2, "bottom") == [2, 3, 4, 5]
