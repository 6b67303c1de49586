"""Devices: copies, streams, events, graphs and logs do what the interface says; a GPU that is absent is one line."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from hwbackend.device import open_device
from hwbackend.devices import cuda
from sim.kv.replay.allocation_trace import read_allocations, write_allocations
from workloads.errors import ConfigError, InputError


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(cuda.missing() is not None, reason=cuda.missing() or ""),
            ],
        ),
    ]
)
def device(request):
    opened = open_device(request.param)
    yield opened
    opened.close()


def test_the_package_imports_without_cupy():
    code = (
        "import sys; sys.modules['cupy'] = None\n"
        "import hwbackend, hwbackend.device, hwbackend.devices.cuda, hwbackend.harness\n"
        "print(hwbackend.devices.cuda.missing())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "CuPy is not installed" in done.stdout


def test_an_absent_device_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(cuda, "missing", lambda: "CuPy finds no GPU")
    with pytest.raises(ConfigError, match=r"^--device cuda: CuPy finds no GPU; use --device cpu$"):
        open_device("cuda")
    with pytest.raises(ConfigError, match="--device tpu: not one of auto, cpu, cuda"):
        open_device("tpu")
    assert open_device("auto").kind == "cpu"


def test_identity_and_memory_are_filled_and_plausible(device):
    identity, memory = device.identity, device.memory()
    assert identity.kind == device.kind
    assert identity.name
    assert identity.compute_units >= 1
    assert identity.cache_bytes >= 2**16
    assert 0 < memory.free_bytes <= memory.total_bytes
    assert any(key.startswith("version") for key in identity.facts)
    assert identity.fingerprint == device.identity.fingerprint
    first, second = device.condition(), device.condition()
    assert second.wall_ns >= first.wall_ns
    assert second.own_ns >= first.own_ns


@pytest.mark.parametrize("pinned", [True, False])
def test_bytes_come_back_as_they_went(device, pinned):
    content = np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8)
    there, back = device.host_buffer(100_000, pinned=pinned), device.host_buffer(100_000, pinned=pinned)
    there[:] = content
    first, second = device.empty(100_000, "uint8"), device.empty((100, 250), "float32")
    device.copy(first, there)
    device.copy(second, first)
    device.copy(back, second)
    device.main.record().synchronize()
    assert np.array_equal(back, content)


def test_copies_of_what_is_not_contiguous_or_not_as_long_are_refused(device):
    square = device.empty((8, 8), "uint8")
    with pytest.raises(ValueError, match=r"contiguous|broadcast"):
        device.copy(square[:, ::2], device.empty(32, "uint8"))
    with pytest.raises(ValueError, match=r"equally many|broadcast"):
        device.copy(square, device.empty(63, "uint8"))


def test_a_side_stream_keeps_its_order_and_waits_for_events():
    device = open_device("cpu")
    first, second, gate, order = device.stream(), device.stream(), threading.Event(), []
    first.run(gate.wait)
    first.run(lambda: order.append("first"))
    done = first.record()
    second.wait(done)
    second.run(lambda: order.append("second"))
    assert not done.done
    assert order == []  # both streams stand behind the gate, and the main thread goes on
    gate.set()
    second.synchronize()
    assert done.done
    assert order == ["first", "second"]
    assert device.elapsed_s(done, device.main.record()) > 0
    device.close()


def test_side_streams_truly_overlap():
    """Two calls that each wait for the other to have started: one after the other they would never end."""
    device = open_device("cpu")
    meeting = threading.Barrier(2, timeout=20)
    streams = [device.stream(), device.stream()]
    for stream in streams:
        stream.run(meeting.wait)
    device.synchronize()
    assert not meeting.broken
    device.close()


def test_an_error_in_a_stream_is_raised_where_somebody_waits_and_stops_what_follows():
    device = open_device("cpu")
    stream, ran = device.stream(), []

    def fails():
        raise RuntimeError("copy went wrong")

    stream.run(fails)
    stream.run(lambda: ran.append(1))
    event = stream.record()
    with pytest.raises(RuntimeError, match="copy went wrong"):
        event.synchronize()
    with pytest.raises(RuntimeError, match="copy went wrong"):
        stream.synchronize()
    assert ran == []
    stream.run(lambda: ran.append(2))  # told once, it goes on
    stream.synchronize()
    assert ran == [2]
    device.close()


def test_a_graph_repeats_its_calls_in_order(device):
    array = device.to_device(np.zeros(4, dtype=np.float32))

    def add():
        array.__iadd__(1)

    def double():
        array.__imul__(2)

    graph = device.capture([add, double])
    start = device.to_host(array)
    graph.replay()
    device.synchronize()
    assert np.array_equal(device.to_host(array), (start + 1) * 2)


def test_events_are_in_the_order_of_time(device):
    start = device.main.record()
    device.flush()
    end = device.main.record()
    end.synchronize()
    assert device.elapsed_s(start, end) > 0


def test_the_log_of_allocations_is_a_trace_that_reads_back(device, tmp_path):
    with device.allocations() as log:
        first = device.empty(1000, "float32")
        second = device.empty(2000, "uint8")
        del first
        third = device.empty(500, "uint8")
    del second, third
    trace = log.trace()
    assert trace.num_bytes.tolist() == [4000, 2000, 500]
    assert trace.is_alloc.tolist()[:4] == [True, True, False, True]
    assert trace.peak_bytes == 6000
    assert (np.diff(trace.time_ns) >= 0).all()
    write_allocations(tmp_path / "trace.csv", trace)
    again = read_allocations(tmp_path / "trace.csv")
    assert np.array_equal(again.address, trace.address)
    assert np.array_equal(again.num_bytes, trace.num_bytes)


def test_an_empty_log_says_so(device):
    with device.allocations() as log:
        pass
    with pytest.raises(InputError, match="nothing was allocated"):
        log.trace()


def test_what_is_freed_after_the_log_is_still_noted_and_what_came_before_it_is_not():
    device = open_device("cpu")
    before = device.empty(100, "uint8")
    with device.allocations() as log:
        inside = device.empty(200, "uint8")
        del before
    del inside
    assert log.trace().num_bytes.tolist() == [200]
    assert log.trace().is_alloc.tolist() == [True, False]
