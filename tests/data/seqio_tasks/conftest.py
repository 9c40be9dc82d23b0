"""Registration of the tasks of `bertfam`, which imports TensorFlow."""

import importlib

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_tasks():
    importlib.import_module("bertfam.data.seqio_tasks.tasks")
