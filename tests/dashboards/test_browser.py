"""The page in a real browser, from disk: it draws, and asks for nothing."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dashboards.report import render
from tests.dashboards.directories import plan, write_comparison, write_run

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium here; on Debian: apt-get install chromium"
)


def opened(page: Path, *options: str) -> tuple[str, list[str]]:
    """The document after its scripts ran, and what the page said on the console (refused requests included)."""
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--enable-logging=stderr",
        "--virtual-time-budget=5000",
        *options,
        "--dump-dom",
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def drawn(document: str) -> dict[str, str]:
    """The inner part of every plot by its id."""
    found = re.findall(r'<div class="plot[^"]*" id="([^"]+)"(.*?)<figcaption>', document, flags=re.DOTALL)
    return dict(found)


def test_everything_is_drawn_and_nothing_is_asked_for(tmp_path):
    directory = write_comparison(tmp_path / "c", names=("static", '<b onclick="x">dynamic</b>'))
    (directory / "plan.json").write_text(json.dumps(plan()))
    document, console = opened(render(directory))
    assert console == []
    plots = drawn(document)
    assert set(plots) == {
        "cdf-ttft",
        "cdf-tpot",
        "cdf-e2el",
        "stages-ttft",
        "stages-e2el",
        "timeline",
        "plan-0",
    }
    assert all('class="main-svg"' in inside for inside in plots.values())
    assert plots["cdf-ttft"].count('class="scatterlayer') == 1
    assert plots["cdf-ttft"].count('class="js-line"') == 2
    assert plots["stages-e2el"].count('class="point"') >= 4
    assert "SLO 100 ms" in plots["cdf-ttft"]
    assert '&lt;b onclick="x"&gt;dynamic&lt;/b&gt;' in plots["stages-ttft"]


def test_dark_system_gets_dark_colours(tmp_path):
    page = render(write_run(tmp_path / "run"))
    light, _ = opened(page)
    dark, console = opened(page, "--blink-settings=preferredColorScheme=0")
    assert console == []
    assert "stroke: rgb(0, 114, 178)" in drawn(light)["cdf-ttft"]
    assert "stroke: rgb(77, 169, 232)" in drawn(dark)["cdf-ttft"]


def test_a_request_would_be_noticed(tmp_path):
    page = render(write_run(tmp_path / "run"))
    leaky = page.read_text(encoding="utf-8").replace(
        "<main>", '<main><img src="https://example.invalid/x.png">'
    )
    page.write_text(leaky, encoding="utf-8")
    _, console = opened(page)
    assert any("Content Security Policy" in line for line in console)
