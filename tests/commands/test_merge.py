"""`bertfam merge`: parameters by hand, scores, and what the merge is good for."""

import dataclasses
import json

import numpy as np
import pytest
from model_folders import arrays

from bertfam import cli
from bertfam.data import vocabularies
from bertfam.training.checkpoints import has_training_state, newest
from bertfam.training.merge import methods, sources


def params(model_dir, step):
    """The parameters of a checkpoint by name."""
    return {name: value for name, value in arrays(model_dir, step).items() if name.startswith("['params']")}


def assert_equals(merged, expected):
    saved = params(merged, 0)
    assert saved.keys() == expected.keys() and len(saved) > 20
    for name, value in expected.items():
        np.testing.assert_allclose(saved[name], value, rtol=2e-7, atol=1e-9, err_msg=name)


def test_average_with_scores(trained, tmp_path, capsys):
    source, merged = trained.model_dir, tmp_path / "merged"
    assert cli.main(["merge", f"--model_dir={source}@15,20", f"--model_dir={source}", f"--output={merged}"]) == 0
    title, header, *rows, last = capsys.readouterr().out.splitlines()
    assert title == f"22 rows of 24 tokens of the validation split of {source}/cache"
    assert header.split() == ["checkpoint", "share", "loss", "mlm_accuracy", "mlm_loss", "nsp_accuracy", "nsp_loss"]
    assert [row.split()[:2] for row in rows] == [*([f"{source}@{step}", "0.3333"] for step in (15, 20, 24)), ["merge", "-"]]
    assert last == f"merged 3 checkpoints to {merged}, a model at its step 0"
    # The newest checkpoint was scored at the end of the run too.
    metrics = [json.loads(line) for line in (source / "metrics.jsonl").read_text().splitlines()]
    scores = [line for line in metrics if line["split"] == "eval"][-1]
    assert rows[2].split()[2] == f"{scores['loss']:.4f}"
    saved = [params(source, step) for step in (15, 20, 24)]
    assert_equals(merged, {name: np.mean([tree[name] for tree in saved], axis=0, dtype=np.float64) for name in saved[0]})
    record = json.loads((merged / "merge.json").read_text())
    assert record["method"] == "average" and f"{record['scores']['loss']:.4f}" == rows[3].split()[2]
    # It is a model like any other.
    assert newest(merged) == 0 and not has_training_state(merged, 0)
    assert cli.main(["fill", f"--model_dir={merged}", "A [MASK]."]) == 0
    assert cli.main(["export", f"--model_dir={merged}", f"--output={tmp_path / 'exported'}"]) == 0


def test_other_methods(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(methods, "_SLICE", 100)
    source = trained.model_dir
    saved = {step: params(source, step) for step in (5, 20, 24)}
    words = ["merge", f"--model_dir={source}@20,24", "--skip_evaluation"]
    assert cli.main([*words, "--weights=3,1", f"--output={tmp_path / 'weighted'}"]) == 0
    assert_equals(tmp_path / "weighted", {name: 0.75 * saved[20][name] + 0.25 * saved[24][name] for name in saved[20]})
    assert cli.main([*words, "--method=exponential", "--decay=0.9", f"--output={tmp_path / 'exponential'}", "--json"]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["share"] for row in record["checkpoints"]] == pytest.approx([0.9, 0.1]) and record["decay"] == 0.9
    assert_equals(tmp_path / "exponential", {name: 0.9 * saved[20][name] + 0.1 * saved[24][name] for name in saved[20]})

    assert cli.main([*words, "--method=ties", f"--base={source}@5", "--density=0.3", f"--output={tmp_path / 'ties'}"]) == 0
    base = saved[5]
    changes = [{name: saved[step][name] - base[name] for name in base} for step in (20, 24)]
    vectors = [np.sort(np.abs(np.concatenate([value.ravel() for value in change.values()]))) for change in changes]
    thresholds = [vector[-round(0.3 * vector.size)] for vector in vectors]
    kept = [{name: np.where(np.abs(value) >= least, value, 0) for name, value in change.items()}
            for change, least in zip(changes, thresholds, strict=True)]  # fmt: skip
    expected = {}
    for name, value in base.items():
        both = np.stack([tree[name] for tree in kept]).astype(np.float64)
        agree = (np.sign(both) == np.sign(both.sum(0))) & (both != 0)
        expected[name] = value + (both * agree).sum(0) / np.maximum(agree.sum(0), 1)
    assert_equals(tmp_path / "ties", expected)


def test_scores_that_are_no_numbers_are_null(trained, tmp_path, capsys):
    source, merged = trained.model_dir, tmp_path / "merged"
    ties = ["--method=ties", f"--base={source}@5", "--scale=3e38", "--batches=1", "--json"]
    assert cli.main(["merge", f"--model_dir={source}@20,24", *ties, f"--output={merged}"]) == 0

    def refuse(number):
        raise AssertionError(f"{number} is no JSON")

    for text in (capsys.readouterr().out.splitlines()[-1], (merged / "merge.json").read_text()):
        record = json.loads(text, parse_constant=refuse)
        assert record["scores"]["loss"] is None and record["checkpoints"][0]["scores"]["loss"] > 0


def test_clashes(trained):
    """A checkpoint of another architecture, vocabulary or set of parameters is named with the difference."""
    first = sources.open_source(str(trained.model_dir), 24)
    model = dataclasses.replace(first.run.objective.model, num_heads=4)
    objective = dataclasses.replace(first.run.objective, model=model)
    shapes = dict(first.params.shapes)
    del shapes["pooler/dense/kernel"]
    others = {
        "num_heads is 4, not 2": {"run": dataclasses.replace(first.run, objective=objective)},
        "it has another vocabulary": {"vocabulary": vocabularies.load(trained.folder / "other-vocab")},
        "it lacks the parameter pooler/dense/kernel": {"params": type("Params", (), {"shapes": shapes})},
    }
    for message, change in others.items():
        other = dataclasses.replace(first, step=20, **change)
        with pytest.raises(sources.UserError, match=f"{first.folder}@20 cannot be merged with {first.name}: .*{message}; leave"):
            sources.check_alike([first, other])
    with pytest.raises(sources.UserError, match=f"--base={first.folder}@20 is no base of {first.name}: it has another voc"):
        sources.check_base(dataclasses.replace(first, step=20, **others["it has another vocabulary"]), first)
    # A base may lack a head, and have others.
    heads = {"other_head/bias": shapes["nsp_head/dense/bias"]}
    body = {path: shape for path, shape in first.params.shapes.items() if not path.startswith("nsp_head/")}
    sources.check_base(dataclasses.replace(first, params=type("Params", (), {"shapes": body | heads})), first)
    with pytest.raises(sources.UserError, match=f"is no base of {first.name}: it lacks the parameter pooler/dense/kernel"):
        sources.check_base(dataclasses.replace(first, params=type("Params", (), {"shapes": shapes})), first)
    with pytest.raises(sources.UserError, match=f"{first.name} is given twice"):
        sources.check_alike([first, first])


def test_large_parameters_are_read_in_blocks(trained, monkeypatch):
    params = sources.open_source(str(trained.model_dir), 24).params
    whole = params.read(params.shapes)
    monkeypatch.setattr("bertfam.training.checkpoints.saved_params._BLOCK_BYTES", 2**12)
    blocks = list(methods.read_together([params, params], params.shapes))
    assert [path for path, _ in blocks] == list(whole)
    assert all(np.array_equal(tensor, whole[path]) for path, pair in blocks for tensor in pair)
