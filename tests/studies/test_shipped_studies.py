"""The shipped studies: each can be planned, and compares what its claims name."""

import pytest

from bertfam import cli
from bertfam.config import load
from bertfam.config.shipped import shipped_files

STUDIES = [name for name in shipped_files() if name.startswith("studies/")]
TEXT = "Cats sleep on warm mats.\nDogs run far in the rain.\n\nBirds sing before the sun comes up.\nFish swim.\n"


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """Return the flags of a text, by the kind of vocabulary that a study needs."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text(TEXT * 20)
    kinds = {"wordpiece": ["--size=100"], "t5": ["--kind=unigram", "--layout=t5", "--size=140"]}
    for kind, own in kinds.items():
        assert cli.main(["vocab", f"--input={folder / 'text.txt'}", f"--output={folder / kind}", *own]) == 0
    return {kind: [f"--input={folder / 'text.txt'}", f"--vocab={folder / kind}"] for kind in kinds}


@pytest.mark.parametrize("name", STUDIES)
def test_a_shipped_study_can_be_planned(name, flags, tmp_path, capsys):
    study = load([name]).build("Study")
    kind = "t5" if "t5" in name else "wordpiece"
    # The files of GLUE are not here.
    others = ["--gin.Study.scores=(@HeldOut(),)", "--gin.Study.claims=()"] if "FineTuned" in str(study.scores) else []
    assert cli.main(["ablate", name, *flags[kind], f"--output={tmp_path / 'out'}", "--parallel=0", "--dry_run", *others]) == 0
    out = capsys.readouterr().out
    assert study.question in out and all(f"\n{arm.name} " in out for arm in study.arms)
    assert study.claims and len(study.seeds) >= 3
