import pytest
from stand_ins import Cloud


@pytest.fixture
def cloud(tmp_path):
    return Cloud(tmp_path)
