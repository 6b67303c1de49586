"""What importing costs: a command that reads no Parquet and fits nothing must not pay for either."""

import subprocess
import sys

HEAVY = ("scipy", "pyarrow", "pandas", "rich", "plotly")


def test_heavy_packages_are_loaded_only_where_used():
    code = f"import sys, workloads.build, workloads.cli; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.strip()
    assert loaded in {"[]", "['rich']"}, "rich may come with the command line"


def test_public_names_of_the_readers():
    from workloads import readers

    assert readers.__all__ == ["FORMATS", "detect_format", "read_trace"]


def test_reading_text_needs_no_scipy_or_pyarrow(tmp_path):
    path = tmp_path / "v.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n5,6\n")
    code = (
        "import sys; from workloads.readers import read_trace; "
        f"read_trace({str(path)!r}); print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
