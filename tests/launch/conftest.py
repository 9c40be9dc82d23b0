"""Fake cloud for the tests of the launchers."""

import pytest
from fake_cloud import Cloud


@pytest.fixture
def cloud(tmp_path):
    """A fake cloud with two machines."""
    return Cloud(tmp_path)
