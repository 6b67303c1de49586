import json

import pytest

from sim.cli import run_command
from tests.dashboards.directories import write_run


def test_writes_into_the_first_directory_and_says_so(tmp_path, capsys):
    directory = write_run(tmp_path / "run")
    assert run_command(["report", str(directory)]) == 0
    assert (directory / "report.html").is_file()
    said = capsys.readouterr()
    assert said.out == ""
    assert "report.html" in said.err


def test_several_runs_on_a_page_of_a_given_name(tmp_path, capsys):
    runs = [str(write_run(tmp_path / name)) for name in ("a", "b")]
    target = tmp_path / "page.html"
    assert run_command(["report", *runs, "--out", str(target), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {"report": str(target), "bytes": target.stat().st_size}


@pytest.mark.parametrize(
    "arguments",
    [[], ["nowhere"], ["RUN", "--out", "nowhere/x.html"], ["RUN", "--out", "."], ["RUN", "--colour"]],
)
def test_bad_input_is_one_line(tmp_path, capsys, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "RUN")
    assert run_command(["report", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1
