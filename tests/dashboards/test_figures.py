import numpy as np
import pytest

from dashboards import figures, theme
from dashboards.series import Band, Curve, Split


def test_cdf_ends_at_least_and_greatest_value_of_each_arm():
    figure = figures.latency_cdf("ttft", {"a": np.array([0.1, 0.2, 0.3]), "b": np.array([0.4, np.nan])})
    first, second = figure.data
    assert (first.x[0], first.x[-1]) == pytest.approx((100, 300))
    assert (first.y[0], first.y[-1]) == (0, 100)
    assert set(second.x) == {400}
    assert (first.legendgroup, second.legendgroup) == ("arm-0", "arm-1")
    assert first.line.color != second.line.color
    assert first.line.dash != second.line.dash
    assert figure.layout.xaxis.type == "linear"


def test_cdf_shows_the_limit_on_either_axis():
    figure = figures.latency_cdf("tpot", {"a": np.array([0.01, 0.02])}, limit_ms=50)
    assert figure.layout.shapes[0].x0 == 50
    assert "50 ms" in figure.layout.annotations[0].text
    wide = figures.latency_cdf("tpot", {"a": np.geomspace(0.001, 10, 50)}, limit_ms=50_000)
    assert wide.layout.xaxis.type == "log"
    assert wide.layout.shapes[0].x0 == 50_000
    assert wide.layout.annotations[0].x == pytest.approx(np.log10(50_000))
    low, high = wide.layout.xaxis.range
    assert low < 0.1
    assert high > np.log10(50_000)


def test_cdf_of_nothing_is_empty():
    assert not figures.latency_cdf("ttft", {"a": np.array([np.nan])}).data


def test_stage_bars_stack_milliseconds_in_order():
    splits = [
        Split("all requests", 10, {"queue": 0.1, "prefill": 0.3}),
        Split("slowest 1%", 1, {"queue": 0.0, "prefill": 2.0}),
    ]
    figure = figures.stage_bars({"arm": splits})
    queue, prefill = figure.data
    assert (queue.name, list(queue.x)) == ("queue", [100, 0])
    assert (prefill.name, list(prefill.x)) == ("prefill", [300, 2000])
    assert list(prefill.customdata) == [0.75, 1]
    assert list(prefill.text) == ["75.0%", "100%"]
    assert figure.layout.barmode == "stack"
    assert ["400 ms" in figure.layout.annotations[0].text, "(10)" in figure.layout.annotations[0].text] == [
        True,
        True,
    ]


def test_stage_bars_leave_out_stages_without_time_and_know_new_ones():
    figure = figures.stage_bars({"a": [Split("all", 1, {"queue": 0.0, "thinking": 1.0})]})
    assert [bar.name for bar in figure.data] == ["thinking"]


def test_stage_bars_of_no_time_at_all():
    assert not figures.stage_bars({"a": [Split("all", 0, {"queue": 0.0})]}).data


def band(mean, low, high):
    return Band(2.0, *(np.array(values, dtype=float) for values in (mean, low, high)))


def test_timeline_has_a_line_in_a_band_a_panel():
    wide, exact = band([1, 2], [0, 1], [3, 4]), band([5, 6], [5, 6], [5, 6])
    bands = dict.fromkeys(figures.PANELS, exact) | {"waiting": wide}
    figure = figures.timeline({"a": bands, "b": bands}, 4.0)
    low, high, mean = figure.data[:3]
    assert (list(low.y), list(high.y), list(mean.y)) == ([0, 1, 1], [3, 4, 4], [1, 2, 2])
    assert high.fill == "tonexty"
    assert (mean.x0, mean.dx, mean.line.shape) == (0, 2.0, "hv")
    assert len(figure.data) == 2 * (3 + 4)
    assert {trace.yaxis for trace in figure.data} == {"y", "y2", "y3", "y4", "y5"}
    assert figure.layout.xaxis.range == (0, 4.0)


def test_plan_curve_marks_broken_limits():
    curve = Curve(np.array([10.0, 20.0]), np.array([100.0, 5000.0]), np.array([True, False]))
    figure = figures.plan_curve({"1 replica": curve}, "p99_ttft_ms", 400.0, {"greatest rate": 15.0})
    (trace,) = figure.data
    assert list(trace.marker.symbol) == ["circle", "x"]
    assert [shape.y0 for shape in figure.layout.shapes if shape.x0 == 0] == [400]
    assert [shape.x0 for shape in figure.layout.shapes if shape.x0 == 15.0] == [15.0]
    assert figure.layout.yaxis.range == (0, 800)


def test_labels_are_shown_letter_by_letter():
    assert figures.label("<b>&</b>") == "&lt;b&gt;&amp;&lt;/b&gt;"
    assert len(figures.label("x" * 500)) == 60
    figure = figures.latency_cdf("ttft", {'<a href="x">': np.array([1.0])})
    assert "<" not in figure.data[0].name


def test_every_arm_colour_has_a_dark_twin():
    for colour in (*theme.ARMS, theme.INK, theme.MUTED, theme.GRID, theme.SURFACE, theme.LIMIT):
        assert theme.DARK[colour] != colour
    assert len({(theme.arm_colour(i), theme.arm_dash(i)) for i in range(12)}) == 12
