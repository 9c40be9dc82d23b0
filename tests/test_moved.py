"""Deprecated import paths: each gives the objects of the new module, with one warning."""

import importlib
import sys
import warnings

import pytest

from bertfam.moved import MODULES


@pytest.mark.parametrize(("old", "new"), MODULES.items())
def test_old_path_warns_once_and_gives_the_same_objects(old, new, monkeypatch):
    monkeypatch.delitem(sys.modules, old, raising=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)  # of what earlier tests have left behind
        importlib.import_module(new)  # its own warnings do not count, nor those of an old package
        importlib.import_module(old.rpartition(".")[0])
        caught.clear()
        moved = importlib.import_module(old)
        assert importlib.import_module(old) is moved
    assert [(warning.category, old in str(warning.message)) for warning in caught] == [(FutureWarning, True)]
    assert new in str(caught[0].message)
    assert (moved.__name__, moved.__spec__.name) == (new, new)  # importlib.reload and pickle find the module by these
    assert {name: id(value) for name, value in vars(moved).items() if not name.startswith("__")} == {
        name: id(value) for name, value in vars(importlib.import_module(new)).items() if not name.startswith("__")
    }


def test_documented_old_names_still_exist():
    with pytest.warns(FutureWarning):
        sys.modules.pop("bertfam.data.sources", None)
        from bertfam.data.sources import Corpus, TextFiles
    from bertfam.data.corpora.corpus import Corpus as NewCorpus

    assert issubclass(TextFiles, NewCorpus) and Corpus is NewCorpus
