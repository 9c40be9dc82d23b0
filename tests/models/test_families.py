"""Table of the families, against the table in README.md."""

import re
from pathlib import Path

import pytest

from bertfam.config import hints, registry
from bertfam.config.parse import Reference
from bertfam.interop import huggingface
from bertfam.models.encoder import EncoderConfig, MaskedLmConfig
from bertfam.models.families import FAMILIES
from bertfam.models.language_model import EncoderDecoderConfig, LanguageModelConfig
from bertfam.models.network import NetworkConfig

ROOT = Path(__file__).parents[2]


def readme_rows():
    """Return the cells of each row of README's table of the family."""
    section = (ROOT / "README.md").read_text().partition("\n## The family\n")[2]
    table = section.partition("\n|---|")[2].partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_readme_has_the_families_of_the_table():
    classes = {name for row in readme_rows() for name in re.findall(r"`(\w+)`", row[4])} - {"transformers"}
    for family in huggingface.FAMILIES.values():
        own = set(family.architectures.values())
        assert classes & own, f"README's table has no class of {family.model_type}"
        classes -= own
    assert not classes, "README's table has classes of no family"
    without_export = [row for row in readme_rows() if row[4].startswith("no export")]
    assert len(without_export) == sum(family.table is None for family in FAMILIES)


def test_readme_names_files_that_exist():
    for _, objectives, models, *_ in readme_rows():
        for folder, cell in (("objectives", objectives), ("models", models)):
            for name in re.findall(r"`([\w*]+)`", cell):
                folders = (folder, "runs") if folder == "models" else (folder,)
                assert any(list((ROOT / "gin_configs" / subfolder).glob(f"{name}.gin")) for subfolder in folders), name


# Encoders that are trained by other objectives than masked language models.
WITHOUT_MASKED_LM_HEAD = {"BilmConfig", "Word2VecConfig"}
INTERFACES = {
    MaskedLmConfig: {"encoder"},
    LanguageModelConfig: {"decoder", "encoder_decoder"},
    EncoderDecoderConfig: {"encoder_decoder"},
}


@pytest.mark.parametrize("family", [family.config for family in FAMILIES])
def test_each_family_implements_the_interfaces_of_its_kind(family):
    """gin accepts its config for just these, and members of a base interface count."""
    reference = Reference((), family, True)
    (configurable,) = registry.find(family)
    kind = configurable.wrapped.kind
    assert hints.fits(reference, NetworkConfig)
    assert {interface for interface in INTERFACES if hints.fits(reference, interface)} == {
        interface for interface, kinds in INTERFACES.items() if kind in kinds and family not in WITHOUT_MASKED_LM_HEAD
    }
    assert hints.fits(reference, EncoderConfig) or kind != "encoder"


def test_encoder_of_an_encoder_decoder_is_an_encoder_without_a_masked_token_head():
    reference = Reference((), "EncoderOnlyConfig", True)
    assert hints.fits(reference, EncoderConfig) and not hints.fits(reference, MaskedLmConfig)
