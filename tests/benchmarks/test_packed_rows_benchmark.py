"""The benchmark of packed rows on a CPU, with a tiny model."""

import json
import sys
from dataclasses import replace

from benchmarks import packed_rows

TINY = ("num_layers = 1", "hidden_size = 16", "num_heads = 2", "feed_forward_size = 16", "global_every = 2")


def test_a_packed_case_is_timed(monkeypatch, capsys):
    sizes = [f"--gin=ModernBertConfig.{size}" for size in TINY] + ["--gin=BATCH_SIZE = 2", "--gin=Stage.length = 640"]
    case = "ModernBERT-base, 32 x 1,024, packed"
    # The logits of the real vocabulary take more time than everything else.
    monkeypatch.setitem(packed_rows.CASES, case, replace(packed_rows.CASES[case], vocabulary=500))
    monkeypatch.setattr(sys, "argv", ["packed_rows", "--steps=1", f"--case={case}", *sizes])
    assert packed_rows.main() == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["tokens_per_second"] * figures["milliseconds"] / 1e3 == 2 * 640
