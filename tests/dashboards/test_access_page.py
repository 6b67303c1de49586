"""The page of a recording: its figures hold what was recorded, for layers and for heads."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from dashboards.access_page import render
from sim.kv.access.recording import Header, Recording
from sim.kv.access.recording_files import write_recording
from tests.dashboards.test_report import Elements, figure_data, own
from workloads.errors import InputError


def written(tmp_path, *, heads=1, layers=2, pages=10, block=16, source="a <model>"):
    """Each layer reads its own page and the last one, with 1/4 and 3/4 of the mass; one step of `pages` pages."""
    layer = np.repeat(np.arange(layers), 2)
    page = np.stack([np.arange(layers), np.full(layers, pages - 1)], axis=1).ravel()
    header = Header(block, block * pages, layers, heads=heads, source=source, random_weights=True)
    path = tmp_path / "reads.parquet"
    write_recording(path, Recording(header, 0 * layer, layer, page, np.tile([0.25, 0.75], layers)))
    return path


def cells(figure) -> np.ndarray:
    """The values of a heat map."""
    z = figure["data"][0]["z"]
    if isinstance(z, list):
        return np.array(z, dtype=float)
    shape = tuple(int(size) for size in z["shape"].split(","))
    return np.frombuffer(base64.b64decode(z["bdata"]), dtype=z["dtype"]).reshape(shape)


def test_the_figures_hold_what_was_recorded(tmp_path):
    target = render(written(tmp_path))
    assert target == tmp_path / "reads.html"
    document = own(target.read_text(encoding="utf-8"))
    distance, pages, shared = (
        figure_data(document, f"access-{name}-data") for name in ("distance", "pages", "shared")
    )
    assert distance["data"][0]["x"] == ["0 to 15", "16 to 31", "32 to 63", "64 to 127", "128 and more"]
    np.testing.assert_allclose(cells(distance), [[75, 0, 0, 0, 25]] * 2)  # pages 0 and 1 lie 144 and 128 back
    expected = np.zeros((2, 10))
    expected[[0, 1], [0, 1]], expected[:, 9] = 25, 75
    np.testing.assert_allclose(cells(pages), expected)
    bars = {trace["name"]: trace["y"] for trace in shared["data"]}
    assert bars == {"read": [50.0], "by chance": [20.0]}  # one of two pages, by chance two of ten
    words = Elements(document).text
    assert "50.0% of all page reads reach 128 tokens or more back" in words
    assert "a <model>" in words
    assert "not judged" in words


def test_reads_far_back_are_counted_whatever_the_page_size(tmp_path):
    """Pages 0 and 1 of 7 lie 144 and 120 tokens back, in one column of the map: 96 to 191."""
    document = own(render(written(tmp_path, pages=7, block=24)).read_text(encoding="utf-8"))
    assert "25.0% of all page reads reach 128 tokens or more back" in Elements(document).text


def test_heads_have_rows_of_their_own(tmp_path):
    document = own(render(written(tmp_path, heads=2, layers=4)).read_text(encoding="utf-8"))
    assert figure_data(document, "access-pages-data")["data"][0]["y"] == ["0.0", "0.1", "1.0", "1.1"]
    assert figure_data(document, "access-shared-data")["data"][0]["x"] == ["1.0", "1.1"]


def test_many_pages_share_columns_and_lose_no_mass(tmp_path):
    document = own(render(written(tmp_path, pages=1000)).read_text(encoding="utf-8"))
    found = cells(figure_data(document, "access-pages-data"))
    assert found.shape[1] <= 240
    np.testing.assert_allclose(found.sum(axis=1), 100, atol=1e-3)


def test_a_single_layer_shares_nothing(tmp_path):
    document = own(render(written(tmp_path, layers=1)).read_text(encoding="utf-8"))
    assert "access-shared" not in document


def test_what_is_no_recording_is_refused(tmp_path):
    path = tmp_path / "reads.jsonl"
    path.write_text("{}\n")
    with pytest.raises(InputError, match="version is None"):
        render(path)
    assert not (tmp_path / "reads.html").exists()
