"""The page of `bertfam report`, on a real run and on folders that are damaged, hostile, or of earlier versions."""

import json
import re
import shutil
import struct
from html.parser import HTMLParser

import pytest
from browser import needs_chromium, opened
from model_folders import copy_run
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.proto.tensor_pb2 import TensorProto

from bertfam import cli
from bertfam.pages.line_chart import Chart, Line, figure, thinned
from bertfam.reports.run_folder import open_runs
from bertfam.training.logs import starts

HOSTILE = "<img src=x onerror=alert(1)> </script><!-- \u202e'\""


class Elements(HTMLParser):
    """The elements of a page, its text, and the data of its curves."""

    def __init__(self, page):
        super().__init__()
        self.names, self.text, self.json = [""], "", ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        attributes = dict(attrs)
        assert not any(name.startswith("on") or name == "src" for name in attributes)
        assert attributes.get("href", "#").startswith(("#", "data:,"))

    def handle_data(self, data):
        if self.names[-1] == "script":
            self.json = self.json or data
        elif self.names[-1] != "style":
            self.text += data

    @property
    def charts(self):
        return {chart["title"]: chart for chart in json.loads(self.json)["charts"]}


def report(tmp_path, *words):
    path = tmp_path / "page.html"
    assert cli.main(["report", *map(str, words), f"--output={path}", "--overwrite"]) == 0
    return Elements(path.read_text())


def small_copy(trained, folder):
    """Copy the files of the run that are small, without checkpoints and cache."""
    return shutil.copytree(trained.model_dir, folder, ignore=shutil.ignore_patterns("cache", "checkpoints", "vocab"))


def lines_of(model_dir):
    return [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]


def values(model_dir, split, name):
    found = [(line["step"], line[name]) for line in lines_of(model_dir) if line["split"] == split and name in line]
    return [step for step, _ in found], [pytest.approx(value, rel=1e-7) for _, value in found]


@pytest.fixture(scope="module")
def resumed(trained, tmp_path_factory):
    """A copy of the run that was started again at step 10."""
    folder = copy_run(trained.model_dir, tmp_path_factory.mktemp("resumed") / "model")
    with open(folder / starts.NAME, "a") as file:
        second = starts.Start(10, "2026-11-30T18:00:00+00:00", ("bertfam", "pretrain", "--model_dir=model"), {}, {})
        file.write(json.dumps(second._asdict()) + "\n")
    return folder


def test_curves_are_those_of_the_metrics(trained, resumed, tmp_path):
    page = report(tmp_path, resumed, trained.model_dir)
    charts = page.charts
    assert json.loads(page.json)["runs"] == [f"{resumed.parent.name}/model", f"{trained.model_dir.parent.name}/model"]
    for title, name in (("Loss", "loss"), ("mlm_loss", "mlm_loss"), ("Learning rate", "learning_rate")):
        for run in (0, 1):
            own = [line for line in charts[title]["lines"] if line["run"] == run]
            splits = ["train"] if name == "learning_rate" else ["train", "eval"]
            assert [(line["x"], line["y"]) for line in own] == [values(resumed, split, name) for split in splits]
    assert charts["Loss"]["seams"] == [[0, 0], [0, 10], [1, 0]]
    tokens = report(tmp_path, resumed, "--x=tokens").charts["Loss"]["lines"][0]
    assert tokens["x"] == values(resumed, "train", "tokens_seen")[1]


def test_page_shows_plan_origins_time_checkpoints_and_commands(trained, resumed, tmp_path):
    text = report(tmp_path, resumed).text
    for words in trained.stdout.splitlines()[:3]:
        assert words in text
    assert f"LinearDecay.peak0.01{trained.folder}/run.gin:" in text.replace("\n", "")
    assert "Stage.shares" in text.partition("defaults")[2]
    assert "compiling" in text and "compiled stage 1" in text
    assert len(re.findall(r"\d\.\d MB[^|]*?training state", text)) == 5
    assert "bertfam pretrain --model_dir=model" in text and "--model_dir=NEW" in text
    (command, *_) = starts.read(trained.model_dir)
    assert command.step == 0 and command.command[:2] == ("bertfam", "pretrain") and command.versions.keys() == {"bertfam", "jax"}


def test_rows_of_noise_are_those_of_the_preview(resumed, tmp_path):
    assert cli.main(["preview", f"--model_dir={resumed}", "--examples=1", f"--html={tmp_path / 'rows.html'}"]) == 0
    (row,) = re.findall(r"<section class='row'>.*?</section>", (tmp_path / "rows.html").read_text(), re.DOTALL)
    report(tmp_path, resumed)
    assert row in (tmp_path / "page.html").read_text()


def test_hostile_files_stay_text(trained, tmp_path):
    run = small_copy(trained, tmp_path / HOSTILE.replace("/", ""))
    plan = json.loads((run / "plan.json").read_text()) | {"device": HOSTILE, "aux_bytes_per_device": {HOSTILE: 1}}
    plan |= dict.fromkeys(("steps", "parameters", "state_bytes_per_device"), 10**400)
    (run / "plan.json").write_text(json.dumps(plan))
    (run / "files.json").unlink()
    with open(run / "config.gin", "a") as file:
        file.write(f"\nimport os.does_not_exist\nText.name = {HOSTILE!r}\n")
    with open(run / "metrics.jsonl", "a") as file:
        for values in ({"loss": 1e308}, {"loss": 10**400}, {HOSTILE: 1.0}, {"loss": None}, {"loss": float("nan")}):
            file.write(json.dumps({"step": 30, "split": "train", **values}) + "\n")
        file.write(json.dumps({"step": 31, "split": HOSTILE, HOSTILE: 2}) + "\n")
        file.write(json.dumps({"step": 10**30, "split": "eval", "loss": 2}) + "\n")
        file.write(json.dumps({"step": 32, "split": "time", HOSTILE: 5}) + '\nno JSON\n{"step": 33')
    start = starts.Start(3, HOSTILE, ("bertfam", HOSTILE), {HOSTILE: HOSTILE}, {"SEED": HOSTILE})
    (run / starts.NAME).write_text(f"{json.dumps(start._asdict())}\n[]\n{{\n" + '{"step": -1}\n')
    page = report(tmp_path, run, trained.model_dir, f"--title={HOSTILE}")
    assert "img" not in page.names and page.names.count("script") == 2
    raw = (tmp_path / "page.html").read_text()
    assert "\u202e" not in raw and "default-src 'none'" in raw and not re.search("https?:", raw.replace("http://www.w3.org/", ""))
    assert "<U+202E>" in page.text and "1 damaged line" in page.text
    loss = page.charts["Loss"]["lines"][0]
    assert loss["x"][-1] == 30 and loss["y"][-1] is None


def test_damaged_and_missing_files_are_lines(trained, tmp_path):
    run = small_copy(trained, tmp_path / "run")
    for name, content in (("plan.json", "{"), ("config.gin", "Run.seed = ("), ("metrics.jsonl", "")):
        (run / name).write_text(content)
    (run / starts.NAME).unlink()
    (events,) = run.glob("*tfevents*")
    # A copy with a record more, of samples.
    value = Summary.Value(tag="samples", tensor=TensorProto(string_val=[b"a text"]))
    record = Event(step=5, summary=Summary(value=[value])).SerializeToString()
    more = struct.pack("<Q4x", len(record)) + record + bytes(4)
    (run / f"{events.name}.copy").write_bytes(events.read_bytes() + more)
    text = report(tmp_path, run).text
    assert "plan.json is not JSON" in text and "config.gin:1" in text and "has no checkpoints" in text
    assert "No run here has a metrics.jsonl with numbers." in text
    # TensorBoard files tell the starts of a run that has no record of them.
    assert re.search(r"2starts", text) and "a text" in text
    (run / "plan.json").write_text('{"parameters": "many"}')
    assert '"parameters": "many"' in report(tmp_path, run).text


def test_run_of_an_earlier_version(trained, tmp_path):
    run = small_copy(trained, tmp_path / "run")
    (run / starts.NAME).unlink()
    page = report(tmp_path, run)
    assert page.charts["Loss"]["seams"] == [[0, 0]] and "LinearDecay.peak0.01not recorded" in page.text.replace("\n", "")
    assert "bertfam pretrain --gin_file=" in page.text


def test_sweeps_and_studies_stand_for_their_runs(trained, tmp_path):
    places = ("sweep/seed_2", "sweep/seed_10", "rates/rate_1e-4/seed_0", "rates/rate_0.1", "study/runs/arm/seed_0/model")
    for place in (*places, "study/runs/arm/rate_0.1/model", "study/runs/other/seed_0/model"):
        (tmp_path / place).mkdir(parents=True)
        shutil.copy(trained.model_dir / "metrics.jsonl", tmp_path / place)
    (tmp_path / "sweep/seed_3").symlink_to(trained.model_dir)
    runs = open_runs([str(tmp_path / name) for name in ("sweep", "rates", "study")])
    labels = ["sweep seed_2", "sweep seed_10", "rates rate_0.1", "rates rate_1e-4 seed_0", "arm seed_0", "other seed_0"]
    assert [run.label for run in runs] == labels
    assert [run.color for run in runs] == [0, 0, 1, 2, 3, 4]
    # Folders of one name are told apart by the folders around them, and a folder is shown once.
    shutil.copytree(tmp_path / "sweep", tmp_path / "later/sweep", symlinks=True)
    runs = open_runs([str(tmp_path / name) for name in ("sweep", "later/sweep", "sweep/../sweep/")])
    assert [run.label for run in runs] == [f"{tmp_path.name}/{place}" for place in places[:2]] + [
        "later/sweep/seed_2",
        "later/sweep/seed_10",
    ]
    assert [run.color for run in runs] == [0, 0, 1, 1]
    (tmp_path / "study/report.json").write_text('{"question": "Which?"}')
    assert "report.json is damaged" in report(tmp_path, tmp_path / "study").text


def test_a_page_is_kept_without_overwrite(resumed, tmp_path, capsys):
    (tmp_path / "page.html").write_text("")
    assert cli.main(["report", str(resumed), f"--output={tmp_path / 'page.html'}"]) == 2
    assert "give --overwrite to replace it" in capsys.readouterr().err


def test_thinned_lines_keep_extremes_and_ends():
    points = [(float(x), None if x % 1000 == 999 else float(x % 7)) for x in range(10_000)]
    points[4321] = (4321.0, 99.0)
    points[8765] = (8765.0, -99.0)
    kept = thinned(points, 300)
    assert len(kept) <= 305 and {points[0], points[-1], points[4321], points[8765]} <= set(kept)
    assert kept == sorted(kept, key=lambda point: point[0]) and set(kept) <= set(points)


@pytest.mark.parametrize(
    "points",
    [
        [(1, 0.0)],
        [(0, 5e-9), (7, None), (9, 5e-9)],
        [(1, 1e-30), (2, 1e29)],
        [(3, -1.0), (4, -2.0)],
        [(1, 0.0), (2, 5e-324)],
        [(1, 1e-323), (2, 1e-323)],
    ],
)
def test_charts_of_few_or_extreme_values(points):
    drawn = figure(Chart("Loss", "update", [Line("loss", 0, 0, 1, points)], may_be_log=True), 0)
    assert "nan" not in drawn and "inf" not in drawn and drawn.count("<circle") == sum(y is not None for _, y in points)


@needs_chromium
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_it_and_reads_values_by_keys(trained, resumed, tmp_path, width):
    report(tmp_path, resumed, trained.model_dir)
    with opened(tmp_path / "page.html", width) as shown:
        shown.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
        chart = shown.locator("figure.chart").first
        chart.locator("svg").focus()
        shown.keyboard.press("Home")
        shown.keyboard.press("ArrowRight")
        second = lines_of(resumed)[1]
        readout = chart.locator("output").inner_text()
        assert readout.startswith(f"update {second['step']}: ") and f"training {second['loss']:.4g}" in readout
        shown.uncheck("#show-0")
        assert not chart.locator(".r0").first.is_visible() and chart.locator(".r1").first.is_visible()
