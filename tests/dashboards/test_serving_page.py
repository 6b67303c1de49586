"""The page of measured runs: every scored point is drawn and named, what stands apart stands apart."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibration.serving.measured_run import METRICS
from calibration.serving.scores import Pair
from calibration.serving.tolerances import judge, parse_tolerance
from calibration.serving.validation import LeftOut, Validation
from calibration.serving.validation_files import PREDICTIONS, SCORES, write_validation
from dashboards.serving_page import render
from tests.dashboards.test_browser import BROWSER, drawn, opened
from tests.dashboards.test_report import HOSTILE, Elements, figure_data, own
from workloads.errors import ConfigError

MODELS, SYSTEMS = ("llama", "qwen"), ("h100", "b200")


def pairs() -> list[Pair]:
    """On two systems two models at three concurrencies: TPOT 10 ms x model, 5 to 30% too high; TTFT twice as long."""
    found = []
    for m, model in enumerate(MODELS):
        for s, system in enumerate(SYSTEMS):
            for c in (1, 8, 64):
                labels = {"model": model, "system": system, "concurrency": c, "precision": "fp8"}
                name, apart = f"{model} {system} c{c}", "odd one" if (m, s, c) == (1, 1, 64) else None
                error = 0.05 * (1 + m + s) if c < 64 else 0.3
                measured = 10.0 * (m + 1)
                predicted = measured * (1 + error)
                found += [
                    Pair(
                        name, model, 0, "mean_tpot_ms", labels, measured, predicted, apart, (5.0, 40.0), "abc"
                    ),
                    Pair(name, model, 0, "mean_ttft_ms", labels, 2 * measured, 2 * measured, apart),
                ]
    return [*found, Pair("blind", "x", 0, "mean_tpot_ms", {"model": "llama"}, None, 3.0)]


def validation(some: list[Pair], **changes: object) -> Validation:
    given = {
        "data": ("table.csv",),
        "profile": None,
        "runs": 13,
        "by": (("system", "model"),),
        "pairs": tuple(some),
        "refused": {"llama h100 c1": 2},
        "left_out": (LeftOut("other", None, "too large for its memory"),),
        "blind": ("blind",),
        "caveats": {"clock unknown": ("llama h100 c1",)},
        "verdicts": tuple(judge([parse_tolerance("mean_tpot_ms:p90=1%")], some)),
    }
    return Validation(**{**given, **changes})


@pytest.fixture
def directory(tmp_path):
    write_validation(validation(pairs()), tmp_path)
    return tmp_path


def page(directory):
    return own(render(directory).read_text(encoding="utf-8"))


def points(figure: dict) -> dict[str, list[str]]:
    """Names of runs by the trace that shows them."""
    return {trace["name"]: trace["text"] for trace in figure["data"] if trace.get("mode") == "markers"}


def test_every_scored_point_is_drawn_and_named(directory):
    document = page(directory)
    figure = figure_data(document, "against-data")
    shown = points(figure)
    assert shown["llama, h100"] == ["llama h100 c1", "llama h100 c8", "llama h100 c64"]
    assert shown["qwen, b200"] == ["qwen b200 c1", "qwen b200 c8"]
    assert shown["scored apart"] == ["qwen b200 c64"]
    assert sum(map(len, shown.values())) == 12
    markers = {trace["name"]: trace["marker"] for trace in figure["data"] if "text" in trace}
    assert (
        markers["llama, h100"]["color"] == markers["llama, b200"]["color"] != markers["qwen, h100"]["color"]
    )
    assert (
        markers["llama, h100"]["symbol"]
        == markers["qwen, h100"]["symbol"]
        != markers["llama, b200"]["symbol"]
    )
    assert figure["layout"]["xaxis"]["type"] == figure["layout"]["yaxis"]["type"] == "log"


def test_the_band_is_ten_percent_around_equality(directory):
    low, high, equal = figure_data(page(directory), "against-data")["data"][:3]
    assert equal["x"] == equal["y"]
    assert low["y"] == pytest.approx([0.9 * x for x in low["x"]])
    assert high["y"] == pytest.approx([1.1 * x for x in high["x"]])
    assert high["fill"] == "tonexty"


def test_both_metrics_can_be_looked_at(directory):
    document = page(directory)
    assert '<option value="against-data">mean_ttft_ms</option>' in document
    assert '<option value="against-data-0">mean_tpot_ms</option>' in document
    tpot = figure_data(document, "against-data-0")
    assert points(tpot)["llama, h100"] == ["llama h100 c1", "llama h100 c8", "llama h100 c64"]
    assert "predicted %{customdata[1]" in tpot["data"][-1]["hovertemplate"]
    assert tpot["data"][3]["customdata"][0] == [10.0, 10.5, pytest.approx(5.0), " (5 to 40)", ""]


def test_residuals_stand_against_what_is_a_number_and_differs(directory):
    document = page(directory)
    words = Elements(document).text
    assert "Errors against concurrency" in words
    assert "Errors against what was measured" in words
    assert "residuals-2" not in document  # nor model, system, precision: words
    figure = figure_data(document, "residuals-0-data-0")
    first = next(trace for trace in figure["data"] if trace["name"] == "llama, h100")
    assert first["x"] == [1, 8, 64]
    assert first["y"] == pytest.approx([5, 5, 30])
    assert "scored apart" not in points(figure)


def test_shares_reach_all_of_each_group(directory):
    figure = figure_data(page(directory), "errors-data-0")
    lines = {trace["name"]: trace for trace in figure["data"]}
    assert set(lines) == {f"{system}, {model}" for system in SYSTEMS for model in MODELS}
    assert lines["h100, llama"]["x"] == pytest.approx([0, 5, 5, 30])
    assert lines["h100, llama"]["y"] == pytest.approx([0, 100 / 3, 200 / 3, 100])


def test_tables_and_lists_say_what_the_scores_say(directory):
    document = page(directory)
    words = Elements(document).text
    assert "mean_tpot_ms: p90 30.00%; the tolerance of 1% is NOT met." in words
    assert "half of 11 within 10.0%, nine tenths within 30.0%" in words
    assert "100% lie in their interval" in words
    assert "<th>in interval</th>" in document
    assert "<td>100.0%</td>" in document
    for said in (
        "odd one: mean_tpot_ms",
        "2 requests of llama h100 c1 could not be served",
        "too large for its memory: other",
        "no results are known: blind",
        "clock unknown (llama h100 c1)",
        "predicted / measured - 1",
    ):
        assert said in words
    scores = json.loads((directory / SCORES).read_text())
    group = next(g for g in scores["scores"]["mean_tpot_ms"]["groups"] if g["labels"]["system"] == "h100")
    assert f"<td>{group['mape']:.1%}</td>" in document


def test_of_many_metrics_the_details_are_folded(tmp_path):
    some = [
        replace(pair, metric=metric) for metric in METRICS[:5] for pair in pairs() if "tpot" in pair.metric
    ]
    write_validation(validation(some, verdicts=()), tmp_path)
    document = page(tmp_path)
    folded = re.findall(r"<details><summary>(.*?)</summary>(.*?)</details>", document, flags=re.DOTALL)
    tables = {name: body for name, body in folded if "<table>" in body}
    assert list(tables) == [*METRICS[:5], "25 cases"]
    assert "h100, llama" in tables[METRICS[0]]
    open_part = re.sub(r"<details>.*?</details>", "", document, flags=re.DOTALL)
    assert all(
        open_part.count(f"<td>{metric}</td>") == 2 for metric in METRICS[:5]
    )  # its score, its worst case


def test_names_are_harmless(tmp_path):
    some = [Pair(HOSTILE, HOSTILE, 0, "mean_tpot_ms", {"model": HOSTILE, "n": n}, 1.0, n) for n in (2, 3)]
    hostile = validation(some, data=(HOSTILE,), caveats={HOSTILE: (HOSTILE,)}, by=(("model",),))
    write_validation(hostile, tmp_path)
    document = page(tmp_path)
    tags = Elements(document)
    assert len(tags.all("img")) == 0
    assert "alert(2)" not in [tag for tag, _ in tags.tags]
    assert document.count("<script>") == 2  # plotly's and the page's own


def test_without_intervals_nothing_is_said_of_them(tmp_path):
    write_validation(validation([replace(pair, interval=None) for pair in pairs()]), tmp_path)
    assert "interval" not in Elements(page(tmp_path)).text


def test_equal_files_give_equal_bytes(directory):
    first = render(directory).read_bytes()
    assert render(directory).read_bytes() == first


def test_nothing_scored_is_a_page_too(tmp_path):
    write_validation(validation([p for p in pairs() if p.run == "blind"], verdicts=()), tmp_path)
    document = page(tmp_path)
    assert "Nothing was scored." in Elements(document).text
    assert 'class="plot"' not in document


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (SCORES, None, "servetwin validate serving --out` writes it"),
        (SCORES, b"{", "scores.json: document"),
        (SCORES, b"{}", "scores.json: data"),
        (PREDICTIONS, None, "predictions.parquet: cannot be read"),
        (PREDICTIONS, b"PAR1", "predictions.parquet: cannot be read"),
    ],
)
def test_garbled_files_are_one_line(directory, name, content, said):
    (directory / name).unlink()
    if content is not None:
        (directory / name).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        render(directory)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (directory / "report.html").exists()


def test_a_missing_column_is_named(directory):
    table = pq.read_table(directory / PREDICTIONS)
    pq.write_table(table.drop_columns(["error"]), directory / PREDICTIONS)
    with pytest.raises(ConfigError, match="has no column error"):
        render(directory)
    words = table.set_column(table.column_names.index("error"), "error", pa.array(["x"] * len(table)))
    pq.write_table(words, directory / PREDICTIONS)
    with pytest.raises(ConfigError, match="cannot be read"):
        render(directory)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here; on Debian: apt-get install chromium")
def test_a_browser_draws_all_of_it_and_asks_for_nothing(directory):
    document, console = opened(render(directory))
    assert console == []
    plots = drawn(document)
    assert set(plots) == {"against", "errors", "residuals-0", "residuals-1"}
    assert all('class="main-svg"' in inside for inside in plots.values())
    assert plots["against"].count('class="point ') == 12
