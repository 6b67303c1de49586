"""Every example of README.md runs as it stands there, in order, in one empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
EXAMPLE = re.compile(r"^```sh\n(servetwin .*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_examples_run(tmp_path):
    examples = EXAMPLE.findall(README.read_text(encoding="utf-8"))
    assert len(examples) >= 6
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for example in examples:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", example],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{example}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr


def test_the_two_commands_are_where_ci_looks_for_them():
    text = README.read_text(encoding="utf-8")
    for marker, end in (("<!-- main job -->", "servetwin demo"), ("<!-- tests -->", "pytest")):
        block = text.split(marker)[1].split("<!-- end -->")[0]
        lines = [line for line in block.strip().splitlines() if not line.startswith("```")]
        assert len(lines) == 1
        assert end in lines[0]
