"""Corpus of the docstrings of installed packages."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from bertfam.data.corpora.python_docs.corpus import PythonDocs
from bertfam.data.corpora.python_docs.packages import HELD_OUT, PACKAGES, find_package, find_sources
from bertfam.errors import UserError

SHARED = "All the packages share this sentence. They also share that one."


@pytest.fixture
def site(tmp_path):
    """Three packages: alpha (with tests and a module that fails when imported), beta, and space/gamma in a namespace."""
    files = {
        "alpha/__init__.py": f'"""Alpha begins with its own words. {SHARED}"""\nraise RuntimeError("imported")',
        "alpha/core/deep.py": 'def f():\n    """Alpha goes deeper down here. It says a second thing."""',
        "alpha/core/broken.py": '"""Nobody can parse this one."""\nprint "x"',
        "alpha/tests/test_core.py": '"""A test says nothing of use."""',
        "alpha/core_test.py": '"""A test says nothing of use."""',
        "beta/__init__.py": '"""Beta has something to say. Held-out text has this sentence too."""',
        "beta/copied.py": f'def f():\n    """{SHARED} Beta adds a word itself."""',
        "space/gamma/__init__.py": f'"""{SHARED.upper()}"""\ndef f():\n    """Gamma is held out wholly. '
        'Held-out text has this sentence too. It ends with this third."""',
    }
    for name, text in files.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text)
    names = ("alpha", "beta", "space/gamma", "absent")
    return PythonDocs(
        directory=str(tmp_path / "cache"),
        packages=tuple((name, f"no-such-{name}") for name in names),
        held_out=("space/gamma",),
        search_path=(str(tmp_path / "site"),),
    )


def test_documents_are_files_without_repeated_sentences(site):
    assert list(site.documents("validation")) == [
        [
            *("ALL THE PACKAGES SHARE THIS SENTENCE.", "THEY ALSO SHARE THAT ONE."),
            *("Gamma is held out wholly.", "Held-out text has this sentence too.", "It ends with this third."),
        ]
    ]
    # Two thirds of a docstring of alpha, and of one of beta, are repeats; so is one of the two sentences in beta's first.
    assert list(site.documents("train")) == [["Alpha goes deeper down here.", "It says a second thing."]]


def test_held_out_sentences_are_removed_from_training_docstrings(site):
    path = find_package("beta", site.search_path) / "__init__.py"
    path.write_text('"""Beta has something to say. Held-out text has this sentence too! Beta goes on for long."""')
    assert ["Beta has something to say.", "Beta goes on for long."] in list(site.documents("train"))


def test_manifest_counts_kept_and_dropped_text(site):
    folder = site.extract()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["fingerprint"] == site.fingerprint() and manifest["absent"] == ["absent"]
    assert manifest["splits"]["train"] == {"documents": 1, "sentences": 2, "bytes": 54}
    assert manifest["packages"].keys() == {"alpha", "space/gamma"}
    assert manifest["dropped"] == {"unparsable_files": 1, "docstrings": 3, "sentences": 8}


def test_text_is_extracted_once_and_again_if_damaged(site):
    folder = site.extract()
    before = (folder / "train.txt.gz").stat().st_mtime_ns
    assert site.extract() == folder and (folder / "train.txt.gz").stat().st_mtime_ns == before
    (folder / "train.txt.gz").write_bytes(b"")
    assert site.extract() == folder and list(site.documents("train"))
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_concurrent_extractions_leave_one_folder(site):
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: site.extract(), range(4)))
    (folder,) = folders
    assert [path.name for path in folder.parent.iterdir()] == [folder.name] and list(site.documents("train"))


def test_cache_folder_follows_the_environment(site, monkeypatch, tmp_path):
    monkeypatch.setenv("BERTFAM_CACHE", str(tmp_path / "b"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    corpus = PythonDocs(packages=site.packages, held_out=site.held_out, search_path=site.search_path)
    digest = site.extract().name
    assert corpus.extract() == tmp_path / "b" / "python_docs" / digest
    monkeypatch.delenv("BERTFAM_CACHE")
    assert corpus.extract() == tmp_path / "x" / "bertfam" / "python_docs" / digest
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written: .* is not a folder; name another, by setting BERTFAM_CACHE"):
        PythonDocs(directory=str(tmp_path / "file"), packages=site.packages).extract()


def test_fingerprint_depends_on_packages_and_held_out(site):
    changed = PythonDocs(packages=site.packages, held_out=("alpha",), search_path=site.search_path)
    assert changed.fingerprint() != site.fingerprint() and json.dumps(site.fingerprint())
    assert "absent" not in site.fingerprint()["packages"]


def test_package_of_the_standard_library(tmp_path):
    corpus = PythonDocs(
        directory=str(tmp_path),
        packages=(("json", "stdlib"),),
        held_out=("json/tool.py",),
        search_path=(str(find_package("stdlib")),),
    )
    documents = list(corpus.documents("train"))
    text = " ".join(sentence for document in documents for sentence in document)
    assert 2 <= len(documents) <= 6 and "JSON" in text and ">>>" not in text
    assert text.count("Serialize obj") >= 1


def test_packages_of_the_embedded_corpus_are_found_without_importing_them():
    code = (
        "import json, sys\n"
        "from bertfam.data.corpora.python_docs.corpus import PythonDocs\n"
        "print(json.dumps([PythonDocs().fingerprint()['packages'], sorted(sys.modules)]))\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    packages, modules = json.loads(process.stdout)
    assert {"stdlib", "numpy", "jax", "flax", "optax"} <= packages.keys()
    assert not {"torch", "transformers"} & packages.keys()
    assert "bertfam.data.corpora.python_docs.corpus" in modules
    assert not {"numpy", "jax", "tensorflow", "scipy", "optax"} & set(modules)


def test_held_out_names_exist():
    for name in HELD_OUT:
        package = name if name in PACKAGES else name.split("/")[0]
        sources = find_sources(package, find_package(package))
        assert any(name in (source.package, source.unit) for source in sources), name
