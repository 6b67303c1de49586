"""`profile fit --engine-log` with results of clients: a known server is found again, a real one predicted."""

import json

import numpy as np
import pytest
import yaml

from calibration.serving.fit_results import FITTED, fit_results, terms_around
from calibration.serving.predict import predict
from calibration.serving.readers.detect import read_runs
from sim.cli import run_command
from sim.profile import HostOverhead, load_profile
from sim.scenario.reading import load_scenario
from sim.served import Served
from sim.service import build_service
from sim.simulation import build_load, simulate
from tests.calibration.serving.client_files import SCENARIO, Known, write_guidellm, write_vllm
from tests.data import shared_data
from tests.fidelity import client_results, cpu_engine
from workloads.errors import InputError

HOST = HostOverhead(base_s=3e-3, per_seq_s=40e-6, per_request_s=8e-3, source="known")
RATES = {"slow": 1.0, "middle": 4.0, "fast": 9.0}


@pytest.fixture(scope="module")
def base():
    """H100 without any overhead: what kernels alone say."""
    free = HostOverhead(base_s=0.0, call_s=HOST.call_s, source="none")
    return load_profile("h100_sxm").model_copy(update={"host": free, "served": None})


@pytest.fixture(scope="module")
def known(base):
    """The same device in a server with costs of its own."""
    return base.model_copy(update={"host": HOST, "served": Served(compute=1.25, source="known")})


def serve(profile, rate, seed, **load):
    """What a client of a server with this profile records: tokens of a request at equal distances."""
    workload = {"input_tokens": {"uniform": [200, 1500]}, "output_tokens": {"uniform": [20, 200]}}
    load = load or {"request_rate": rate}
    raw = SCENARIO | {"seed": seed, "workload": workload | load | {"num_requests": 60}}
    scenario = load_scenario(raw)
    requests = simulate(scenario, build_service(scenario, profile), build_load(scenario)).requests
    tpot_s = 1e-9 * np.nan_to_num(requests.tpot_ns)
    gaps = [[tpot] * (count - 1) for tpot, count in zip(tpot_s, requests.output_tokens.tolist(), strict=True)]
    return Known(
        sent=(1e-9 * requests.arrival_ns).tolist(),
        ttft=(1e-9 * requests.ttft_ns).tolist(),
        gaps=gaps,
        inputs=requests.input_tokens.tolist(),
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory, known):
    """Files of three loads, by two clients."""
    folder = tmp_path_factory.mktemp("results")
    writers = [write_vllm, write_guidellm, write_vllm]
    return [
        write(folder / name, serve(known, rate, seed))
        for seed, (write, (name, rate)) in enumerate(zip(writers, RATES.items(), strict=True))
    ]


@pytest.mark.parametrize("seats", [None, 7])
def test_what_the_twin_served_it_predicts(tmp_path, known, seats):
    """An open stream and a closed loop, written as a client writes them, read, and simulated again."""
    load = {} if seats is None else {"max_concurrency": seats}
    said = (
        {} if seats is None else {"max_concurrency": seats, "request_rate": "inf", "queue_times": [1.0] * 60}
    )
    (run,) = read_runs(write_vllm(tmp_path, serve(known, 4.0, 3, **load), **said), SCENARIO)
    assert run.workload.max_concurrency == seats
    (predicted,) = predict(run, known).parts
    assert predicted == pytest.approx(dict(run.parts[0].measured), rel=1e-5)


def test_terms_start_and_stay_around_the_base(known):
    terms = {term.path: term for term in terms_around(known)}
    assert list(terms) == list(FITTED)
    assert terms["host.base_s"].expected == 3e-3
    assert terms["served.compute"].expected == 1.25
    assert terms["host.per_request_s"].spread >= 0.3 * 8e-3


def test_a_known_server_is_found_again_from_its_clients(results, base, known):
    runs = [run for path in results for run in read_runs(path, SCENARIO)]
    found = fit_results(runs, base, "mine")
    host, served = found.profile.host, found.profile.served
    assert found.profile.name == "mine"
    assert host.base_s == pytest.approx(HOST.base_s, rel=0.25)
    assert host.per_request_s == pytest.approx(HOST.per_request_s, rel=0.3)
    assert (
        1.05 < served.compute < 1.35
    )  # three runs tell it from the others but roughly: it stays near the base
    errors = [abs(pair.error) for pair in found.judged]
    before = [abs(pair.error) for pair in found.before]
    assert len(errors) == len(before) == 3 * 4
    assert np.median(errors) < 0.04
    assert max(errors) < 0.1 < np.median(before)
    assert {one.term for one in found.profile.residuals} == {
        "mean_tpot_ms",
        "mean_ttft_ms",
        "median_ttft_ms",
        "mean_e2el_ms",
    }


def test_one_run_says_nothing_of_its_error(results, base):
    runs = read_runs(results[0], SCENARIO)
    found = fit_results(runs, base, "mine")
    assert found.held_out is None
    assert found.judged == ()
    assert found.profile.residuals == ()


def test_runs_that_cannot_be_trusted_are_not_fitted(tmp_path, known, base):
    run = serve(known, 4.0, 1)
    run.failed = [i % 5 == 0 for i in range(len(run))]
    with pytest.raises(InputError, match="nothing to fit: requests failed"):
        fit_results(read_runs(write_vllm(tmp_path, run), SCENARIO), base, "mine")


def test_what_the_scenario_cannot_serve_is_refused(results, base):
    short = SCENARIO | {"engine": SCENARIO["engine"] | {"max_model_len": 600}}
    with pytest.raises(InputError, match="do not fit what the scenario says"):
        fit_results(read_runs(results[0], short), base, "mine")


@pytest.fixture
def service(tmp_path, base):
    (tmp_path / "base.json").write_text(base.to_json())
    path = tmp_path / "service.yaml"
    path.write_text(yaml.safe_dump(SCENARIO | {"hardware": {"profile": "base.json"}}))
    return path


def fit_command(*arguments):
    return run_command(["profile", "fit", *map(str, arguments)])


def test_the_command_judges_on_runs_held_out(tmp_path, results, service, capsys):
    out = tmp_path / "mine.json"
    arguments = ["--engine-log", results[0], "--engine-log", results[2], "--held-out", results[1]]
    assert fit_command(*arguments, "--scenario", service, "--out", out, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["held_out"] == "runs of which none was fitted"
    assert {run["run"] for run in said["runs"]} == {str(results[1])}
    assert all(abs(run["error"]) < 0.05 for run in said["runs"])
    fitted = load_profile(out)
    assert fitted.host.source.startswith(f"results of clients: {results[0]}")
    assert said["content_hash"] == fitted.content_hash


def test_the_command_leaves_each_run_out_in_turn(tmp_path, results, service, capsys):
    out = tmp_path / "mine.json"
    folder = results[0].parent.parent
    assert fit_command("--engine-log", folder, "--scenario", service, "--out", out) == 0
    text = capsys.readouterr().out
    assert "error on each run, by a fit to the others (by base before):" in text.replace("h100_sxm", "base")
    assert all(str(path) in text for path in results)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a[:2], "--scenario: missing"),
        (lambda a: [*a, "--held-out", a[1]], "is fitted too"),
        (lambda a: [*a, "--engine-log", a[1]], "given 2 times"),
        (lambda a: [*a, "--model", "llama-3.1-8b"], "--model"),
        (lambda a: [*a, "--base", "none"], "no profile none"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(tmp_path, results, service, capsys, change, message):
    out = tmp_path / "mine.json"
    arguments = change(["--engine-log", results[0], "--scenario", service])
    assert fit_command(*arguments, "--out", out) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert message in said[-1]
    assert not list(tmp_path.glob("*mine*"))


def test_a_step_log_among_results_is_named(tmp_path, results, service, capsys):
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "steps.csv").write_text("step\n")
    arguments = ["--engine-log", results[0], "--engine-log", tmp_path / "log", "--scenario", service]
    assert fit_command(*arguments, "--out", tmp_path / "mine.json") == 2
    assert "is a step log, which goes without --scenario" in capsys.readouterr().err


def test_a_real_server_is_predicted_from_one_run_of_a_client():
    """Another load of it; its profile before was fitted to steps without a server around them."""
    clients = shared_data("bench_clients")
    base = cpu_engine.calibrated(shared_data("vllm_cpu_engine"))
    runs = client_results.measured_runs(clients, base)
    assert len(runs) == 6
    other = runs["vllm_bench_serve/random_rate0.6"]
    found = fit_results([runs[client_results.FITTED]], base, "server", [other])
    assert [pair.run for pair in found.judged] == [other.name] * 4
    assert (
        max(abs(pair.error) for pair in found.judged) < 0.08 < min(abs(pair.error) for pair in found.before)
    )
