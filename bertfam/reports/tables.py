"""Tables of a report over all of its runs: summary, time, memory and held-out scores."""

from collections.abc import Sequence
from typing import Any

from bertfam.errors import UserError
from bertfam.pages.document import html_table, html_text
from bertfam.pages.line_chart import COLORS
from bertfam.plurals import listed
from bertfam.reports.curves import Metrics, median, seconds
from bertfam.reports.run_folder import RunFolder
from bertfam.storage.untrusted import read_json
from bertfam.training.checkpoints import retention
from bertfam.training.run_plan import duration, si

NONE = "—"
MOST_ROWS = 200  # of a table
_MOST_PHASES = 20
_LARGEST_COUNT = 2**63

Runs = Sequence[tuple[RunFolder, Metrics]]


def _plan_of(run: RunFolder) -> dict[str, Any]:
    """Read the plan of a run; {} if it has none, or a damaged one, of which its own section says so."""
    try:
        return read_json(run.path / "plan.json")
    except UserError:
        return {}


def _count(value: Any) -> float | None:
    """Return a number that a file states, None for another value, or one that is no count of anything."""
    return value if type(value) in (int, float) and 0 <= value < _LARGEST_COUNT else None


def summary_rows(runs: Runs) -> list[list[str]]:
    """Return a row of each run: its size, its losses and its speed."""
    rows = []
    for run, metrics in runs:
        plan = _plan_of(run)
        total, parameters = (_count(plan.get(name)) for name in ("steps", "parameters"))
        mfu, speed = (median(metrics, name) for name in ("mfu", "tokens_per_second"))
        spent = sum(seconds(metrics.sums["time"]).values())
        tokens = _last(metrics, "train", "tokens_seen")
        rows.append(
            [
                run.label,
                f"{metrics.last_step():,}" + (f" of {total:,}" if total else ""),
                NONE if tokens is None else si(tokens).strip(),
                NONE if parameters is None else f"{si(parameters)}".strip(),
                f"{plan['devices']} x {plan['device']}" if {"devices", "device"} <= plan.keys() else NONE,
                _number(_last(metrics, "train", "loss")),
                _number(_best(metrics, "loss")),
                NONE if speed is None else f"{speed:,.0f}",
                NONE if mfu is None else f"{mfu:.1%}",
                duration(spent) if spent else NONE,
                str(max(len(run.starts), 1)),
            ]
        )
    header = ["run", "updates", "tokens", "parameters", "devices", "training loss", "best held-out loss"]
    return [[*header, "tokens a second (median)", "MFU (median)", "time", "starts"], *rows]


def _last(metrics: Metrics, split: str, name: str) -> float | None:
    values = [value for _, value in metrics.series.get((split, name), ()) if value is not None]
    return values[-1] if values else None


def _best(metrics: Metrics, name: str) -> float | None:
    values = [value for _, value in metrics.series.get(("eval", name), ()) if value is not None]
    return (min if retention.is_loss(name) else max)(values, default=None)


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.4f}"


def time_html(runs: Runs) -> str:
    """Return a bar of each run's time by phase, and the table."""
    spent = {run.label: own for run, metrics in runs if (own := seconds(metrics.sums["time"]))}
    if not spent:
        return "<p class='note'>No run here has recorded its time: a run does so when it ends or is stopped in order.</p>"
    names = dict.fromkeys(name for own in spent.values() for name in own)
    phases = sorted(names, key=lambda name: -sum(own.get(name, 0) for own in spent.values()))[:_MOST_PHASES]
    parts = []
    for label, own in spent.items():
        total = sum(own.values()) or 1.0
        spans = "".join(
            f"<span class='s{place % COLORS}' style='width:{100 * own[name] / total:.2f}%' title='{html_text(name)} "
            f"{own[name] / total:.1%}'></span>"
            for place, name in enumerate(phases)
            if name in own
        )
        parts.append(
            f"<div><small class='name'>{html_text(label)}</small><div class='phases' aria-hidden='true'>{spans}</div></div>"
        )
    key = "".join(f"<span>{swatch(place % COLORS)} {html_text(name)}</span>" for place, name in enumerate(phases))
    rows = [["phase", *spent], *([name, *(_share(own, name) for own in spent.values())] for name in phases)]
    rows.append(["all", *(duration(sum(own.values())) for own in spent.values())])
    killed = [run.label for run, metrics in runs if len(run.starts) > len(metrics.sums["time"])]
    note = (
        f"<p class='note'>Without the time of starts that did not end in order: {html_text(listed(killed, 10))}.</p>"
        if killed
        else ""
    )
    return f"<div class='bars'>{''.join(parts)}</div><p class='key'>{key}</p>{html_table(rows)}{note}"


def _share(own: dict[str, float], name: str) -> str:
    return f"{duration(own[name])} ({own[name] / (sum(own.values()) or 1):.1%})" if name in own else NONE


def memory_rows(runs: Runs) -> list[list[str]]:
    """Return the bytes on each device, by what they are for."""
    names: dict[str, dict[str, str]] = {}
    for run, metrics in runs:
        plan = _plan_of(run)
        sizes = {"parameters and optimizer": plan.get("state_bytes_per_device")}
        aux = plan.get("aux_bytes_per_device")
        sizes |= {f"{name} (not trained)": size for name, size in aux.items()} if isinstance(aux, dict) else {}
        for _, line in metrics.sums["memory"]:
            sizes |= {_memory_name(name): size for name, size in line.items()}
        for name, size in list(sizes.items())[:MOST_ROWS]:
            if (count := _count(size)) is not None:
                names.setdefault(name, {})[run.label] = f"{count / 2**20:,.1f} MiB"
    labels = [run.label for run, _ in runs]
    return [["on each device", *labels], *([name, *(own.get(label, NONE) for label in labels)] for name, own in names.items())]


def _memory_name(name: str) -> str:
    if name == "peak_bytes":
        return "peak, counted by the device"
    return f"compiled {name.removesuffix('_bytes').replace('_', ' ')}"


def score_rows(runs: Runs) -> list[list[str]]:
    """Return the best and the last value of every held-out metric, with their updates."""
    names = dict.fromkeys(key for _, metrics in runs for key in metrics.series if _is_score(key[0]))
    rows = []
    for split, name in list(names)[:MOST_ROWS]:
        cells = []
        for _, metrics in runs:
            points = [(step, value) for step, value in metrics.series.get((split, name), ()) if value is not None]
            if not points:
                cells.append(NONE)
                continue
            sign = 1 if retention.is_loss(name) else -1
            best = min(points, key=lambda point: (sign * point[1], -point[0]))
            ends = [(best, "best"), (points[-1], "last")]
            cells.append("; ".join(f"{word} {value:.4f} ({step:,})" for (step, value), word in ends))
        rows.append([name if split == "eval" else f"{split}: {name}", *cells])
    return [["score (update)", *(run.label for run, _ in runs)], *rows]


def _is_score(split: str) -> bool:
    return split.startswith("eval") or split not in ("train", "inspect")


def swatch(color: int) -> str:
    """Return the colour of a run as a small rectangle."""
    return f"<span class='swatch s{color}' aria-hidden='true'></span>"
