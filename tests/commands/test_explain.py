"""`bertfam configs` and `bertfam explain`: what can be configured, in words."""

import json

import pytest

from bertfam import cli
from bertfam.config import explain, registry, shipped


def output(capsys, *words):
    assert cli.main([*map(str, words)]) == 0
    return capsys.readouterr().out


def test_every_shipped_file_is_listed_with_its_first_sentence(capsys):
    listed = json.loads(output(capsys, "configs", "--json"))
    assert {"runs/quickstart.gin", "models/bert_base.gin", "objectives/mlm_nsp.gin", "meshes/fsdp.gin"} <= set(listed)
    assert len(listed) == len(list(shipped.packaged_folder().rglob("*.gin"))) and all(map(str.strip, listed.values()))
    assert listed["runs/bert_base.gin"].startswith("BERT-base by its published recipe (Devlin et al. 2019) on your own text")
    lines = output(capsys, "configs", "models", "electra").splitlines()
    assert [line.split()[0] for line in lines] == [f"models/electra_{size}.gin" for size in ("base", "large", "small")]
    assert cli.main(["configs", "electra", "fsdp"]) == 2
    assert "electra and fsdp" in capsys.readouterr().err


def test_every_class_is_explained_with_all_its_fields():
    missing = []
    for selector in registry.CONFIGURABLES:
        explanation = explain.explain(selector)
        assert explanation.summary and [field.name for field in explanation.fields] == list(registry.parameters(selector))
        missing += [f"{selector}.{field.name}" for field in explanation.fields if not field.description]
    assert missing == []


def test_fields_have_defaults_and_places(capsys, tmp_path):
    fields = {field["name"]: field for field in json.loads(output(capsys, "explain", "@CosineDecay()", "--json"))["fields"]}
    assert list(fields) == ["peak", "warmup_steps", "floor", "decay_share"] and fields["floor"]["default"] == "0.0"
    (place,) = fields["floor"]["places"]
    assert (place["name"], place["value"]) == ("CosineDecay.floor", "0.1") and place["where"].startswith("runs/gpt2_small.gin:")

    (tmp_path / "own.gin").write_text("# mine\nlate/CosineDecay.floor = 0.2\nAdamW.schedule = @late/CosineDecay()\n")
    text = output(capsys, "explain", "CosineDecay", f"--gin_file={tmp_path}/own.gin", "--gin.CosineDecay.peak=3e-4")
    places = [line.split() for line in text.splitlines() if "  # " in line]
    assert places == [
        ["CosineDecay.peak", "=", "0.0003", "#", "--gin.CosineDecay.peak=3e-4"],
        ["late/CosineDecay.floor", "=", "0.2", "#", f"{tmp_path}/own.gin:2"],
    ]


@pytest.mark.parametrize(("name", "hint"), [("Adamw", "AdamW"), ("zzzz", "bertfam explain")])
def test_unknown_class_is_one_line(capsys, name, hint):
    assert cli.main(["explain", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert name in line and hint in line


def test_without_a_name_all_classes_are_listed(capsys):
    classes = dict(line.split(maxsplit=1) for line in output(capsys, "explain").splitlines())
    assert list(classes) == sorted(classes) and {"AdamW", "BertConfig", "Run", "TextData"} <= set(classes)
    assert classes["AdamW"].startswith("Adam with decoupled weight decay (Loshchilov and Hutter 2019), after")
    assert list(classes) == json.loads(output(capsys, "explain", "--json"))


def test_field_is_answered_with_the_command_that_shows_it(capsys):
    assert cli.main(["explain", "AdamW.schedule"]) == 2
    assert "bertfam explain AdamW " in capsys.readouterr().err
