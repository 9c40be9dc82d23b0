"""Texts of TensorFlow Datasets, read from data written here by the builders' own writer."""

import pytest
from late_import import late_import

from bertfam.commands import flags
from bertfam.data.seqio_tasks.corpus import SeqioTask
from bertfam.errors import UserError

seqio, tfds = late_import("seqio"), late_import("tensorflow_datasets")
tfds_tasks = late_import("bertfam.data.seqio_tasks.tfds")

ARTICLES = [
    "\n_START_ARTICLE_\nA Title. Of two.\n_START_SECTION_\nEarly life\n_START_PARAGRAPH_\nShe was born. She grew."
    "_NEWLINE_She left.\n_START_SECTION_\nLater\n_START_PARAGRAPH_\nShe came.\n_START_PARAGRAPH_\nShe_won",
    "\n_START_ARTICLE_\nEmpty",
    "\n_START_ARTICLE_\nTitle\n_START_PARAGRAPH_\nOnly this.",
]
# Task -> the texts of its builder's elements, and their documents.
EXAMPLES = {
    "wiki40b_en": (ARTICLES, [["She was born.", "She grew.", "She left.", "She came.", "She_won"], ["Only this."]]),
    "wiki40b_zh_cn": (["\n_START_ARTICLE_\n题\n_START_PARAGRAPH_\n一。1 二。_NEWLINE_三。"], [["一。", "1 二。", "三。"]]),
    "wikipedia_de": (["Kurz.\n\nZeit\nAm 5. Mai kam er. Es war spät."], [["Kurz.", "Zeit", "Am 5. Mai kam er.", "Es war spät."]]),
    "c4_en": (["One. Two.\nThree."], [["One.", "Two.", "Three."]]),
    "c4_realnewslike": (["One. Two.\nThree."], [["One.", "Two.", "Three."]]),
    "lm1b": (["It is . It was .", "He went ."], [["It is . It was ."], ["He went ."]]),
}


def own_tasks():
    names = seqio.TaskRegistry.names()
    return [name for name in names if isinstance(seqio.TaskRegistry.get(name).source, tfds_tasks.PreparedTfds)]


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    monkeypatch.setattr(seqio.utils.LazyTfdsLoader, "_MEMOIZED_BUILDERS", {})
    for name in own_tasks():
        monkeypatch.setattr(seqio.TaskRegistry.get(name).source.tfds_dataset, "_data_dir_override", str(tmp_path))
    return tmp_path


def prepare(name, texts):
    """Write texts as each of the builder's splits."""
    source = seqio.TaskRegistry.get(name).source
    builder = tfds.builder(source.tfds_dataset.name, data_dir=source.tfds_dataset.data_dir)
    builder.data_path.mkdir(parents=True)
    writer = tfds.core.SequentialWriter(builder.info, max_examples_per_shard=1)
    splits = [source.tfds_dataset._map_split(split) for split in source.splits]
    writer.initialize_splits(splits)
    for text in texts:
        writer.add_examples({split: [dict.fromkeys(builder.info.features, "other") | {"text": text}] for split in splits})
    writer.close_all()


@pytest.mark.parametrize("name", EXAMPLES)
def test_documents_of_every_task(data_dir, name):
    texts, documents = EXAMPLES[name]
    prepare(name, texts)
    corpus = SeqioTask(name, validation_fraction=0.0)
    assert list(corpus.documents("train")) == documents
    assert list(corpus.documents("validation")) == ([] if name.startswith("wikipedia") else documents)
    if len(texts) > 1:
        assert len(corpus.parts("train")) == len(texts)
    fingerprint = corpus.fingerprint()
    assert seqio.TaskRegistry.get(name).source.tfds_dataset.name in fingerprint["source"]["described"]
    assert fingerprint["language"] == {"wiki40b_zh_cn": "zh", "wikipedia_de": "de"}.get(name, "en")
    assert SeqioTask(name, language="fi").fingerprint()["language"] == "fi"


def test_every_task_has_a_builder_with_a_text_feature(data_dir):
    assert set(EXAMPLES) < set(own_tasks()) and len(own_tasks()) == 15
    for name in own_tasks():
        source = seqio.TaskRegistry.get(name).source
        builder = source.tfds_dataset.builder  # raises where name, config or version is unknown
        assert isinstance(builder.info.features["text"], tfds.features.Text), name


@pytest.mark.parametrize("name", ["wiki40b_de", "lm1b"])
def test_unprepared_data_is_refused_and_not_downloaded(data_dir, name, caplog):
    builder = seqio.TaskRegistry.get(name).source.tfds_dataset.name.partition(":")[0]
    for read in (lambda corpus: list(corpus.documents("train")), lambda corpus: corpus.parts("train"), SeqioTask.__getstate__):
        with pytest.raises(
            UserError, match=rf"^{builder} is not in {data_dir}/.*: prepare it with `tfds build {builder}`, or set TFDS_DATA_DIR"
        ):
            read(SeqioTask(name))
    assert not list(data_dir.iterdir()) and not caplog.text


def test_other_languages_and_dates(data_dir):
    names = [task.name for task in (tfds_tasks.add_wiki40b("cs"), tfds_tasks.add_wikipedia("fi", "20220620"))]
    assert names == ["wiki40b_cs", "wikipedia_20220620_fi"]
    sources = [seqio.TaskRegistry.get(name).source for name in names]
    assert [source.language for source in sources] == ["und", "fi"]
    assert [source.tfds_dataset.builder.info.full_name for source in sources] == [
        "wiki40b/cs/1.3.0",
        "wikipedia/20220620.fi/1.0.0",
    ]
    for name in names:
        seqio.TaskRegistry.remove(name)


def test_help_names_every_task():
    assert set(flags.TFDS_TASKS) == set(own_tasks())
