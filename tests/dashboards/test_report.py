import json
import re
import shutil
from html.parser import HTMLParser

import pytest
from plotly.offline import get_plotlyjs

from dashboards.content import read_directory
from dashboards.report import render, report_html, write_report
from tests.dashboards.directories import plan, write_comparison, write_run
from workloads.errors import ConfigError

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>\"'&amp;{{}}"


class Elements(HTMLParser):
    """Collects tags with their attributes, and the text outside scripts and styles."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""
        self.feed(document)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside not in ("script", "style"):
            self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def own(document: str) -> str:
    """The page without Plotly."""
    assert document.count(get_plotlyjs()) == 1
    return document.replace(get_plotlyjs(), "")


def page(directory):
    return own(render(directory).read_text(encoding="utf-8"))


def figure_data(document, name):
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', document)
    return json.loads(found[1])


def test_run(tmp_path):
    document = page(write_run(tmp_path / "run"))
    words = Elements(document).text
    assert "50.0% of the requests met TTFT \u2264 100 ms." in words  # requests 1-10 of 20
    assert "20 of 20 requests completed" in words
    assert "tiny on toy_gpu" in words
    assert "abc123" in words
    assert figure_data(document, "cdf-ttft-data")["layout"]["shapes"][0]["x0"] == 100
    assert len(figure_data(document, "stages-e2el-data")["data"]) == 3  # nothing was preempted
    assert 'value="timeline-data-1">replica 1<' in document


def test_sections_come_in_the_order_of_the_questions(tmp_path):
    directory = write_comparison(tmp_path / "c")
    (directory / "plan.json").write_text(json.dumps(plan()))
    headings = re.findall(r"<h2>(.*?)</h2>", page(directory))
    assert headings == [
        "Verdict",
        "The arms",
        "The winner as engine flags",
        "Latencies",
        "Where the time goes",
        "Over time",
        "Capacity plan",
        "What this stands on",
    ]


def test_comparison(tmp_path):
    document = page(write_comparison(tmp_path / "c"))
    words = Elements(document).text
    assert "dynamic is better." in words
    assert "--max-num-seqs 64" in words
    assert "a note on flags" in words
    assert "a caution" in words
    assert "the first 10 of 20 requests do not count (MSER-5 on e2el)" in words
    rows = dict(re.findall(r"<th scope='row'>(.*?)</th>(.*?)</tr>", document))
    assert "[\u221215.0, \u22125.00] <span class='better'>better" in rows["TTFT P99 [ms]"]
    assert "no difference shown" in rows["TTFT P50 [ms]"]
    assert ">better<" in rows["Goodput [requests/s]"]
    assert len(figure_data(document, "cdf-e2el-data")["data"]) == 2


def test_comparison_without_winner_or_runs(tmp_path):
    directory = write_comparison(
        tmp_path / "c", winner=None, verdict="no difference shown: all is one.", engine_flags=None
    )
    shutil.rmtree(directory / "arms")
    document = page(directory)
    assert "No difference shown: all is one." in document
    assert "engine flags" not in document
    assert 'class="plot"' not in document


def test_more_than_two_arms_have_their_difference_below_the_value(tmp_path):
    document = page(write_comparison(tmp_path / "c", names=("a", "b", "c")))
    head = re.search(r"<thead>.*?</thead>", document)[0]
    assert head.count("<th ") == 4
    assert "class=many" in document


def test_plan(tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps(plan()))
    document = page(tmp_path)
    words = Elements(document).text
    assert "The limits at 30.0 requests/s need 3 replicas (3 GPUs, 9.00 per hour)." in words
    assert "1 replica carries up to 15.0 requests/s." in words
    assert "few requests" in words
    one, three = figure_data(document, "plan-0-data")["data"]
    assert one["x"] == [10.0, 15.0, 16.0]
    assert (three["name"], three["y"]) == ("3 replicas", [300.0])


def test_plan_with_a_lock_file_names_what_it_stands_on(tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps(plan()))
    lock = {
        "servetwin": "0",
        "profile": {"name": "toy_gpu", "engine": "vLLM 0", "hash": "abc123"},
        "num_gpu_blocks": 1234,
        "scenario": {"model": "tiny", "hardware": {"tensor_parallel_size": 2}},
    }
    (tmp_path / "scenario.lock.yaml").write_text(json.dumps(lock))
    words = Elements(page(tmp_path)).text
    assert "Capacity plan: tiny on toy_gpu" in words
    for fact in ("abc123", "vLLM 0", "1,234", "Scenario as it ran"):
        assert fact in words
    (tmp_path / "scenario.lock.yaml").write_text("[]")
    with pytest.raises(ConfigError, match=r"scenario\.lock\.yaml"):
        render(tmp_path)


def test_plan_that_cannot_be_met(tmp_path):
    nothing = {
        "slo_met": False,
        "replicas": None,
        "gpus": None,
        "cost_per_hour": None,
        "max_request_rate": 0.0,
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan() | nothing))
    words = Elements(page(tmp_path)).text
    assert "No number of replicas was found that keeps the limits at 30.0 requests/s." in words
    assert "1 replica cannot keep the limits at any rate." in words


def test_runs_side_by_side_claim_no_significance(tmp_path):
    runs = [write_run(tmp_path / name, factor=factor) for name, factor in (("slow", 2.0), ("fast", 1.0))]
    target = write_report(runs, tmp_path / "both.html")
    document = own(target.read_text(encoding="utf-8"))
    words = Elements(document).text
    assert "fast has the lowest P99 TTFT" in words
    assert "they cannot say whether a difference is more than chance" in words
    assert "+100.0%" not in words  # slow is the first
    assert "\u221250.0%" in words


def test_runs_of_the_same_name_are_told_apart(tmp_path):
    runs = [write_run(tmp_path / side / "run") for side in ("a", "b")]
    document = write_report(runs, tmp_path / "both.html").read_text(encoding="utf-8")
    assert "a/run" in document
    assert "b/run" in document


@pytest.mark.parametrize("count", [0, 1])
def test_hardly_any_requests(tmp_path, count):
    document = page(write_run(tmp_path / "run", count))
    words = Elements(document).text
    if count:
        assert "1 of 3 requests completed" in words
        assert figure_data(document, "cdf-ttft-data")["data"]
    else:
        assert "No request was completed (3 were sent)" in words
        assert 'class="plot"' not in document


def test_notes_stand_out(tmp_path):
    document = page(
        write_run(
            tmp_path / "run",
            rejected={"exceeds_kv_cache": 3},
            extrapolated={"gemm": "beyond 8,192 tokens"},
            warnings=["3 requests were refused"],
        )
    )
    assert '<p class="note">3 requests were refused</p>' in document
    assert "gemm: beyond 8,192 tokens" in document
    assert "3 exceeds kv cache" in document


def test_page_loads_nothing(tmp_path):
    document = page(write_run(tmp_path / "run"))
    elements = Elements(document)
    assert not re.findall(r"(?:https?:)?//[a-z]", document.replace("// Draws", ""))
    assert not [a for _, a in elements.tags if {"src", "href", "srcset", "action", "data"} & set(a)]
    assert not elements.all("link") + elements.all("iframe") + elements.all("img")
    assert "url(" not in document
    assert "@import" not in document
    policy = next(
        a["content"] for a in elements.all("meta") if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.split(";")[1]


def test_same_input_gives_same_bytes_in_any_folder(tmp_path):
    one = render(write_comparison(tmp_path / "one")).read_bytes()
    assert render(write_comparison(tmp_path / "two")).read_bytes() == one
    run = render(write_run(tmp_path / ".scratch-1234")).read_bytes()
    assert render(write_run(tmp_path / "named")).read_bytes() == run
    assert b"20200101" not in run  # the date of a run is no part of its result


def test_names_from_files_cannot_become_markup(tmp_path):
    names = (HOSTILE, "b")
    directory = write_comparison(
        tmp_path / "c",
        names=names,
        winner=HOSTILE,
        verdict=HOSTILE,
        engine_flags=HOSTILE,
        engine_notes=[HOSTILE],
        warnings=[HOSTILE],
        metric=HOSTILE,
    )
    hostile_plan = plan() | {"binding_constraint": HOSTILE, "explanation": HOSTILE, "warnings": [HOSTILE]}
    point = {"request_rate": 1, "replicas": 1, "met": True, "metrics": {HOSTILE: 1}}
    hostile_plan |= {"slo": {HOSTILE: 1.0}, "curve": [point]}
    (directory / "plan.json").write_text(json.dumps(hostile_plan))
    for i in range(2):
        shutil.rmtree(directory / "arms" / str(i))
        write_run(
            directory / "arms" / str(i),
            model=HOSTILE,
            profile={"name": HOSTILE, "engine": HOSTILE, "hash": HOSTILE},
            warnings=[HOSTILE],
            extrapolated={HOSTILE: HOSTILE},
            rejected={HOSTILE: 1},
            servetwin=HOSTILE,
        )
    document = page(directory)
    plain = write_comparison(tmp_path / "plain")
    (plain / "plan.json").write_text(json.dumps(plan()))
    elements, harmless = Elements(document), Elements(page(plain))
    assert {tag for tag, _ in elements.tags} <= {tag for tag, _ in harmless.tags} | {"wbr"}
    executed = [a for a in elements.all("script") if a.get("type") != "application/json"]
    assert len(executed) == 2
    assert not [a for _, a in elements.tags if any(name.startswith("on") for name in a)]
    assert "alert(1)" in elements.text


def test_names_cannot_become_markup_inside_a_figure(tmp_path):
    document = page(write_comparison(tmp_path / "c", names=('<a href="https://x.test">y</a>', "b")))
    for name in ("cdf-ttft-data", "timeline-data", "stages-ttft-data"):
        figure = figure_data(document, name)
        assert "<a" not in json.dumps(figure)


def test_every_figure_has_a_text_alternative_and_every_table_a_caption(tmp_path):
    document = page(write_comparison(tmp_path / "c"))
    elements = Elements(document)
    plots = [a for a in elements.all("div") if a.get("class") == "plot"]
    assert len(plots) == 6
    assert all(a["role"] == "img" and len(a["aria-label"]) > 40 for a in plots)
    assert len(elements.all("caption")) == len(elements.all("table"))
    assert elements.all("html") == [{"lang": "en"}]


def test_page_stays_small_however_long_the_run(tmp_path):
    directory = write_run(tmp_path / "run", 20_000)
    assert len(page(directory).encode()) < 400_000


def test_nothing_is_left_where_the_page_cannot_be_written(tmp_path):
    directory = write_run(tmp_path / "run")
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_report([directory], tmp_path / "there")
    assert not list((tmp_path / "there").iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {"run", "there"}


def test_page_of_content_equals_page_of_files(tmp_path):
    directory = write_run(tmp_path / "run")
    assert report_html(read_directory(directory)) == render(directory).read_text(encoding="utf-8")
