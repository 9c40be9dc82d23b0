"""Documents in JSON lines and Parquet."""

import functools
import io
import json
from typing import get_args

import pyarrow
import pytest
from pyarrow import feather, parquet

from bertfam.data.corpora import formats, parquet_tables
from bertfam.data.corpora.formats import INPUT_FORMATS, InputFormat
from bertfam.data.corpora.parquet_pages import read_pages
from bertfam.data.corpora.text_files import TextFiles
from bertfam.errors import UserError

TEXTS = ["He met Dr. Smith. She left!\nThey ate.", " \r\n ", "It rained.\rAll day.\r\n\r\nTill night. ", "", "Ü 漢 😀\u2028x."]
DOCUMENTS = [
    ["He met Dr. Smith.", "She left!", "They ate."],
    ["It rained.", "All day.", "Till night."],
    ["Ü 漢 😀\u2028x."],
]


def read(path, **settings):
    return list(TextFiles(str(path), validation_fraction=0.0, **settings).documents("train"))


def error_message(path, **settings):
    with pytest.raises(UserError) as raised:
        read(path, **settings)
    assert "\n" not in str(raised.value)
    return str(raised.value).removeprefix(str(path))


def test_formats_equal_those_of_the_setting():
    assert get_args(InputFormat) == tuple(INPUT_FORMATS)


def write_table(path, columns, **options):
    parquet.write_table(pyarrow.table(columns), path, **options)


@pytest.mark.parametrize("ascii", [True, False])
def test_json_lines(tmp_path, ascii):
    lines = [json.dumps({"id": i, "text": text, "body": "b"}, ensure_ascii=ascii) for i, text in enumerate(TEXTS)]
    (tmp_path / "a").write_text("\ufeff" + "\n\n".join(lines))
    assert read(tmp_path / "a", input_format="jsonl") == DOCUMENTS
    assert read(tmp_path / "a", input_format="jsonl", text_field="body") == [["b"]] * len(TEXTS)


KINDS = [pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())]


@pytest.mark.parametrize("kind", KINDS)
def test_parquet(tmp_path, kind):
    texts = pyarrow.array(TEXTS).cast(kind)
    count = len(TEXTS)
    columns = {"id": list(range(count)), "text": texts, "a.b": ["b"] * count, "struct": [{"text": "no"}] * count}
    write_table(tmp_path / "a", columns, row_group_size=2)
    assert read(tmp_path / "a", input_format="parquet") == DOCUMENTS
    assert read(tmp_path / "a", input_format="parquet", text_field="a.b") == [["b"]] * len(TEXTS)


def test_lone_surrogates_and_nul_are_replaced(tmp_path):
    (tmp_path / "a").write_text('{"text": "a \\ud83d\\ude00 \\ud83d b \\u0000 c"}')
    assert read(tmp_path / "a", input_format="jsonl") == [["a 😀 \ufffd b \ufffd c"]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": 1, "body": "x"}', "no field 'text' but id, body"),
        ("{}", "no field 'text' but none"),
        ('{"text": 7}', "the field 'text' is a number, not a string"),
        ('{"text": true}', "the field 'text' is a boolean, not a string"),
        ('{"text": null}', "the field 'text' is null, not a string"),
        ('{"text": ["x"]}', "the field 'text' is a list, not a string"),
        ('["text"]', "JSON value is a list"),
        ('"text"', "JSON value is a string"),
        ('{"text": "x}', "not JSON (Unterminated string starting at)"),
        ("plain text", "not JSON (Expecting value)"),
        ('{"text": "one", "id": 1, "text": "two"}', "the field 'text' is there twice"),
        ("[" * 100_000, "not JSON ("),
    ],
)
def test_bad_json_lines_are_reported_with_their_position(tmp_path, line, message):
    (tmp_path / "a").write_text('{"text": "fine"}\n\n' + line + "\n")
    assert error_message(tmp_path / "a", input_format="jsonl").startswith(f":3: {message}")


def test_other_fields_may_be_there_twice(tmp_path):
    (tmp_path / "a").write_text('{"id": 1, "text": "one", "id": 2}\n')
    assert read(tmp_path / "a", input_format="jsonl") == [["one"]]


def test_a_list_of_pages_is_refused_with_the_command_that_splits_it(tmp_path):
    for text in ('[\n {"text": "a"}\n]\n', '[{"text": "a"}]'):
        (tmp_path / "a").write_text(text)
        assert error_message(tmp_path / "a", input_format="jsonl").endswith("jq -c '.[]'")


def test_parquet_with_two_columns_of_one_name_is_refused(tmp_path):
    parquet.write_table(pyarrow.table([["a"], ["b"]], names=["text", "text"]), tmp_path / "a")
    assert error_message(tmp_path / "a", input_format="parquet").startswith(": 2 columns are named 'text'")


def test_parquet_that_unpacks_to_gigabytes_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_tables, "_UNPACKED", 1 << 20)
    rows = ["the sailor saw the boat"] * 100
    write_table(tmp_path / "a", {"text": ["a" * (1 << 22)], "other": ["b"]}, compression="zstd", use_dictionary=False)
    assert "become 4,194,3" in (error := error_message(tmp_path / "a", input_format="parquet")) and "of 1 row:" in error
    assert read(tmp_path / "a", input_format="parquet", text_field="other") == [["b"]]

    def number(value):
        return bytes((value << 1 >> place & 127) | (128 if place < 21 else 0) for place in range(0, 28, 7))

    stated = parquet.read_metadata(tmp_path / "a").row_group(0).column(0).total_uncompressed_size
    content = (tmp_path / "a").read_bytes()
    assert content.count(number(stated)) == 1
    (tmp_path / "a").write_bytes(content.replace(number(stated), number(1 << 20)))  # the footer lies, the page does not
    assert "become 4,194,3" in error_message(tmp_path / "a", input_format="parquet")
    write_table(tmp_path / "a", {"text": rows}, compression="zstd")
    assert read(tmp_path / "a", input_format="parquet") == [[row] for row in rows]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_sizes_of_the_pages_of_a_column(tmp_path, version, dictionary):
    settings = {"data_page_version": version, "use_dictionary": dictionary, "data_page_size": 4000, "row_group_size": 9000}
    write_table(tmp_path / "a", {"text": [f"row {row % 700}" for row in range(20_000)]}, write_page_checksum=True, **settings)
    metadata = parquet.read_metadata(tmp_path / "a")
    for group in range(3):
        column = metadata.row_group(group).column(0)
        start = column.dictionary_page_offset if dictionary else column.data_page_offset
        with open(tmp_path / "a", "rb") as file:
            pages = list(read_pages(file, start, column.total_compressed_size, column.num_values))
        assert len(pages) >= 2
        for total, sizes in ((column.total_compressed_size, "packed"), (column.total_uncompressed_size, "unpacked")):
            headers = total - sum(getattr(page, sizes) for page in pages)
            assert 10 * len(pages) < headers < 200 * len(pages)
    damaged = [b"", b"\xff" * 40, b"\x15\x00\x15\x01\x15\x01\x00", b"\x18" + b"\xff" * 9 + b"\x01", b"\x1c" * 40 + b"\x00" * 40]
    for content in damaged:  # no header, no type, sizes below 0, a text of 2^64 bytes, structures without end
        with pytest.raises((ValueError, OverflowError)):
            list(read_pages(io.BytesIO(content), 0, 100, 1))


def test_other_kinds_of_columns_and_files_are_answered_with_what_makes_them_text(tmp_path):
    write_table(tmp_path / "a", {"text": pyarrow.array(["He left.", "It rained."], pyarrow.string_view())})
    assert read(tmp_path / "a", input_format="parquet") == [["He left."], ["It rained."]]
    for column, fix in (([b"a"], "cast('string')"), ([None], "with the text in a column"), ([{"a": "b"}], "such as text.a")):
        write_table(tmp_path / "a", {"text": column})
        assert fix in error_message(tmp_path / "a", input_format="parquet")
    feather.write_feather(pyarrow.table({"text": ["a"]}), tmp_path / "a", compression="uncompressed")
    assert "this is an Arrow or Feather file" in error_message(tmp_path / "a", input_format="parquet")


def test_text_in_an_object_or_a_struct(tmp_path):
    rows = [{"a": {"en": {"b.c": "He left."}, "n": 1}, "a.n": "x"}, {"a": {"en": {"b.c": "It rained."}, "n": 2}, "a.n": "y"}]
    (tmp_path / "j").write_text("\n".join(json.dumps({"a": {"en": row["a"]["en"]["b.c"]}, "a.n": row["a.n"]}) for row in rows))
    assert read(tmp_path / "j", input_format="jsonl", text_field="a.en") == [["He left."], ["It rained."]]
    write_table(tmp_path / "p", {name: [row[name] for row in rows] for name in ("a", "a.n")})
    assert read(tmp_path / "p", input_format="parquet", text_field="a.en.b.c") == [["He left."], ["It rained."]]
    for name in ("j", "p"):  # a field of the name itself goes first
        kind = {"j": "jsonl", "p": "parquet"}[name]
        assert read(tmp_path / name, input_format=kind, text_field="a.n") == [["x"], ["y"]]
    error = functools.partial(error_message, tmp_path / "j", input_format="jsonl")
    assert error(text_field="a").endswith("such as a.en")
    assert error(text_field="a.de").startswith(":1: no field 'de' in 'a' but en; ")
    assert error(text_field="a.en.x").startswith(":1: no field 'a.en.x': 'a.en' is a string")
    error = functools.partial(error_message, tmp_path / "p", input_format="parquet")
    assert error(text_field="a.de").startswith(": no column 'a.de' but a.en.b.c, a.n")
    write_table(tmp_path / "p", {"a": [{"b": "x"}, None]})
    assert error(text_field="a.b").startswith(": row 2: column 'a.b' is null")


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5_000])
def test_message_about_a_line_of_json_names_nothing_of_python(tmp_path, value):
    (tmp_path / "a").write_text(f'{{"text": {value}}}')
    error = error_message(tmp_path / "a", input_format="jsonl")
    assert error.startswith(":1: not JSON (") and "recursion" not in error and "sys." not in error


def test_bad_parquet_is_reported(tmp_path, monkeypatch):
    path = tmp_path / "a"
    options = {"input_format": "parquet"}
    write_table(path, {"id": [1], "body": ["x"]})
    assert error_message(path, **options) == ": no column 'text' but id, body; name the text's with --text_field"
    assert error_message(path, text_field="id", **options).startswith(": column 'id' has type int64, not string; ")
    assert error_message(path, text_field="id", **options).endswith("--text_field, such as body")
    write_table(path, {"text": [["a", "b"], ["c"]], "id": [1, 2]})
    assert error_message(path, **options).startswith(": column 'text' has type list<")
    assert "no other column has strings: join" in error_message(path, **options)
    write_table(path, {"text": ["x", None]})
    assert error_message(path, **options) == ": row 2: column 'text' is null, not a string; drop such rows, or fill them with ''"
    damaged = "not a Parquet file, or damaged after row 0; download it again"
    write_table(path, {"text": ["some text"] * 1000}, use_dictionary=False)
    data = path.read_bytes()
    for bad in (data[:-20], b"PAR1", b"plain text\n" * 9, data[:4] + b"\xff" * 60 + data[64:]):
        path.write_bytes(bad)
        assert error_message(path, **options) == f": {damaged}"
    path.write_bytes(b"")
    assert error_message(path, **options).startswith(" is empty, and no Parquet file: leave it out")
    path.write_bytes(b"PARE" + b"\1" * 40 + b"PARE")
    assert "a Parquet file with an encrypted footer" in error_message(path, **options)
    write_table(path, {"text": pyarrow.array([b"\xe9", b"x"]).view(pyarrow.string())})
    assert error_message(path, **options).startswith(": not UTF-8 after row 0; ")
    monkeypatch.setattr(formats, "LONGEST_LINE", 10)
    write_table(path, {"text": ["short\nlines\nonly", "x" * 11]})
    assert error_message(path, **options).startswith(": row 2: a line longer than 10 characters; ")
