"""Environment variables of JAX, XLA and bertfam whose values have no meaning."""

import os

import pytest

from bertfam import cli, environment


@pytest.mark.parametrize(
    "given",
    [
        "JAX_NUM_CPU_DEVICES=0",
        "JAX_NUM_CPU_DEVICES=two",
        "JAX_NUM_CPU_DEVICES=",
        "XLA_FLAGS=garbage",
        "XLA_FLAGS=xla_dump_to=/tmp --xla_cpu_enable_fast_math=false",
        "XLA_FLAGS=--xla_dump_hlo_as_text=true --xla_no_such_flag=1",
        "XLA_FLAGS=--xla_backend_optimization_level=high",
        "XLA_PYTHON_CLIENT_MEM_FRACTION=90%",
        "XLA_CLIENT_MEM_FRACTION=0",
        "XLA_PYTHON_CLIENT_ALLOCATOR=malloc",
        "JAX_COMPILATION_CACHE_DIR={file}/cache",
        "BERTFAM_CACHE={file}",
        "JAX_COMPILATION_CACHE_DIR=$HOME/cache",
        "BERTFAM_CACHE='/tmp'",
        "XLA_PYTHON_CLIENT_MEM_FRACTION=90",
        "JAX_DISABLE_JIT=1",
        "JAX_NUMPY_DTYPE_PROMOTION=strict",
        "JAX_NUMPY_RANK_PROMOTION=raise",
        "JAX_THREEFRY_PARTITIONABLE=False",
        "JAX_NUM_CPU_DEVICES=99999999",
        "XLA_FLAGS=--xla_force_host_platform_device_count=99999",
        "BERTFAM_CACHE_GIB=0",
        "BERTFAM_CACHE_GIB=all",
    ],
)
def test_a_value_without_a_meaning_is_one_line_that_names_the_variable(tmp_path, monkeypatch, capsys, given):
    (tmp_path / "file").touch()
    name, _, value = given.format(file=tmp_path / "file").partition("=")
    monkeypatch.setenv(name, value)
    assert cli.main(["configs", "bert_tiny"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"bertfam: error: {name}={value}: ") and "unset it" in line
    assert "no_such_flag" not in value or "(Unknown flag in XLA_FLAGS: --xla_no_such_flag=1)" in line
    assert cli.main(["configs", "--help"]) == 0


def test_values_with_a_meaning_pass(tmp_path, monkeypatch, capsys):
    (tmp_path / "flags.txt").write_text("--xla_cpu_enable_fast_math=false")
    for name, value in (
        ("JAX_NUM_CPU_DEVICES", "8"),
        ("XLA_FLAGS", f"{tmp_path}/flags.txt"),
        ("XLA_CLIENT_MEM_FRACTION", ".75"),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", "4.0"),
        ("XLA_PYTHON_CLIENT_ALLOCATOR", "platform"),
        ("JAX_COMPILATION_CACHE_DIR", f"{tmp_path}/new/folder"),
        ("BERTFAM_CACHE", "gs://bucket/cache"),
        ("JAX_DISABLE_JIT", "0"),
        ("JAX_NUMPY_RANK_PROMOTION", "warn"),
        ("BERTFAM_CACHE_GIB", "0.5"),
    ):
        monkeypatch.setenv(name, value)
    assert cli.main(["configs", "bert_tiny"]) == 0 and not capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_home_folder_of_a_cache_of_programs_is_expanded_where_jax_would_not(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "~/programs")
    environment.check()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "/home/me/programs"


def test_a_cache_of_programs_that_cannot_be_written_is_one_warning(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    environment.check()
    (line,) = capsys.readouterr().err.splitlines()
    assert f"JAX_COMPILATION_CACHE_DIR={tmp_path} " in line
    assert float(os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"]) > 1e6


def test_a_number_that_jax_cannot_read_is_named(monkeypatch):
    from jax._src.config import int_env

    monkeypatch.setenv("JAX_SOME_LIMIT", "many")
    with pytest.raises(ValueError, match="many") as caught:
        int_env("JAX_SOME_LIMIT", 1)
    mistake = environment.mistake(caught.value)
    assert mistake is not None and "JAX_SOME_LIMIT=many: " in str(mistake)
    assert environment.mistake(ValueError("invalid literal for int() with base 10: 'many'")) is None
