"""`bertfam fill`: JSON as documented, text for people, mistakes."""

import json

import pytest
from command_line import bertfam, replaced

from bertfam import api, cli
from bertfam.data import vocabularies
from bertfam.decoding.fill import fill

TEXTS = ["The [MASK] of a function is [MASK].", "[MASK]"]


def test_json_is_a_list_of_texts_with_their_masks(trained, capsys):
    assert cli.main(["fill", f"--model_dir={trained.model_dir}", "--json", "--top_k=3", *TEXTS]) == 0
    found = json.loads(capsys.readouterr().out)
    vocabulary = vocabularies.load(trained.folder / "vocab")
    assert [result["text"] for result in found] == TEXTS and [set(result) for result in found] == [{"text", "masks"}] * 2
    for result in found:
        ids = vocabulary.encode_prompt(result["text"]).ids
        assert [mask["position"] for mask in result["masks"]] == [
            p for p, id in enumerate(ids) if id == vocabulary.token_ids.mask
        ]
        for mask in result["masks"]:
            assert set(mask) == {"position", "predictions"} and len(mask["predictions"]) == 3
            for found_ in mask["predictions"]:
                assert set(found_) == {"token_id", "token", "probability"}
                assert vocabulary.pieces([found_["token_id"]]) == [found_["token"]]
            chances = [found_["probability"] for found_ in mask["predictions"]]
            assert chances == sorted(chances, reverse=True) and 0 < chances[-1] and sum(chances) < 1
    direct = fill(api.load(trained.model_dir), TEXTS, 3)
    assert [mask.predictions[0].token_id for masks in direct for mask in masks] == [
        mask["predictions"][0]["token_id"] for result in found for mask in result["masks"]
    ]


def test_text_output_of_an_earlier_step_in_a_process_without_tensorflow(trained, tmp_path):
    words = ["fill", f"--model_dir={trained.model_dir}", "--step=5", "--top_k=2", *TEXTS]
    done = bertfam(*words, MODULES=tmp_path / "modules.json")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [lines[0], lines[3]] == TEXTS and len(lines) == 5
    for line, masks in zip(
        (lines[1], lines[2], lines[4]), sum(fill(api.load(trained.model_dir, step=5), TEXTS, 2), []), strict=True
    ):
        assert line == "  " + "  ".join(f"{found.token} {found.probability:.1%}" for found in masks.predictions)
    assert not {"tensorflow", "seqio", "torch"} & set(json.loads((tmp_path / "modules.json").read_text()))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a b"], "no [MASK] in 'a b'; write [MASK] where a token is to be filled in"),
        (["[MASK]", ""], "no [MASK] in ''; write [MASK] where a token is to be filled in"),
        (
            ["( " * 30 + "[MASK]"],
            f"'{('( ' * 29)[:57]}...' has 33 tokens and the model reads at most 24; shorten it",
        ),
        (["--top_k=0", "[MASK]"], "--top_k=0 is less than 1"),
        (["--step=6", "[MASK]"], "{model_dir}/checkpoints has no step 6; it has 5, 10, 15, 20, 24"),
        (["--model_dir=.", "[MASK]"], ". is neither a model folder (config.gin) nor a Hugging Face folder (config.json)"),
        ([], "the following arguments are required: TEXT (see bertfam fill --help)"),
    ],
)
def test_mistakes(trained, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert cli.main(replaced(["fill", f"--model_dir={trained.model_dir}"], words)) == 2
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", f"bertfam: error: {message.format(model_dir=trained.model_dir)}\n")
    assert list(tmp_path.iterdir()) == []
