"""Kernel tables of one system -> Profile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from calibration.devices import profile_name, read_device
from calibration.tables import Table, read_table
from sim.curves.attention import KV_BYTES, DecodeCurve, PrefillCurve
from sim.curves.comm import CommCurve
from sim.curves.elementwise import ElementwiseCurve
from sim.curves.gemm import WEIGHT_BYTES, GemmCurve
from sim.curves.moe import MOE_WEIGHT_BYTES, MoeCurve
from sim.curves.term import Float
from sim.profile import Profile

def fit_log(predict: Callable[[Float], Float], measured: Float, start: Float) -> Float:
    """Positive parameters that minimise the soft absolute error of log(predicted / measured)."""
    def miss(log_params: Float) -> Float:
        return np.log(predict(np.exp(log_params)) / measured)
    found = least_squares(miss, np.log(start), loss="soft_l1", f_scale=0.1)
    return np.asarray(np.exp(found.x))

def ranges(table: Table, **names: str) -> dict[str, tuple[float, float]]:
    return {ours: (float(table.number(t).min()), float(table.number(t).max())) for ours, t in names.items()}

def thin(table: Table, rows: int = 6000) -> Table:
    mask = np.zeros(len(table), bool); mask[:: max(1, len(table) // rows)] = True
    return table.where(mask)

def gemm(table, dtype, peak, bw):
    x = thin(table.where((table["n"] >= 256) & (table["k"] >= 256)))
    base = dict(source="gemm", fitted=ranges(table, m="m", n="n", k="k"), weight_bytes=WEIGHT_BYTES[dtype])
    m, n, k = x.number("m"), x.number("n"), x.number("k")
    make = lambda p: GemmCurve(launch_s=p[0], flops_per_s=p[1], bytes_per_s=p[2], **base)
    return make(fit_log(lambda p: make(p).seconds(m, n, k), x.time_s, np.array([3e-6, peak * 0.7, bw * 0.8])))

def prefill(table, kv, peak, bw):
    x = table
    base = dict(source="attention_prefill", fitted=ranges(table, heads="heads", kv_heads="kv_heads", head_dim="head_dim", new_tokens="isl"), kv_bytes=KV_BYTES[kv])
    make = lambda p: PrefillCurve(launch_s=p[0], flops_per_s=p[1], bytes_per_s=p[2], **base)
    def predict(p):
        out = np.zeros(len(x))
        for w in np.unique(x["window"]):
            k = x["window"] == w
            y = x.where(k)
            c = make(p)
            out[k] = c.seconds(y.number("heads"), y.number("kv_heads"), y.number("head_dim"), int(w), y.number("isl"), y.number("past_kv"), y.number("batch"))
        return out
    return make(fit_log(predict, x.time_s, np.array([1e-5, peak * 0.5, bw * 0.8])))

def decode(table, kv, bw):
    x = table
    base = dict(source="attention_decode", fitted=ranges(table, heads="heads", kv_heads="kv_heads", head_dim="head_dim", num_seqs="batch"), kv_bytes=KV_BYTES[kv])
    make = lambda p: DecodeCurve(launch_s=p[0], bytes_per_s=p[1], **base)
    def predict(p):
        out = np.zeros(len(x))
        for w in np.unique(x["window"]):
            k = x["window"] == w
            y = x.where(k)
            out[k] = make(p).seconds(y.number("heads"), y.number("kv_heads"), y.number("head_dim"), int(w), y.number("batch"), y.number("batch") * y.number("kv_len"))
        return out
    return make(fit_log(predict, x.time_s, np.array([1e-5, bw * 0.8])))

def moe(table, dtype, peak, bw):
    x = table.where(np.char.startswith(table["distribution"].astype(str), "power_law_1.2"))
    base = dict(source="moe", fitted=ranges(table, tokens="tokens"), weight_bytes=MOE_WEIGHT_BYTES[dtype])
    make = lambda p: MoeCurve(launch_s=p[0], flops_per_s=p[1], bytes_per_s=p[2], **base)
    keys = [tuple(map(int, t)) for t in np.unique(np.stack([x[c].astype(int) for c in ("hidden", "inter", "topk", "experts", "moe_tp", "moe_ep")], 1), axis=0)]
    def predict(p):
        out = np.zeros(len(x)); c = make(p)
        for h, i, t, e, tp, ep in keys:
            k = (x["hidden"] == h) & (x["inter"] == i) & (x["topk"] == t) & (x["experts"] == e) & (x["moe_tp"] == tp) & (x["moe_ep"] == ep)
            out[k] = c.seconds(x.number("tokens")[k], h, i, t, e, tp, ep)
        return out
    return make(fit_log(predict, x.time_s, np.array([2e-5, peak * 0.4, bw * 0.7])))

def fit_profile(directory: Path, system: str) -> Profile:
    dev = read_device(directory / "system.yaml", system)
    peak, bw = dev.flops_per_s["bfloat16"], dev.hbm_bytes_per_s
    t = {n: read_table(directory / f"{n}.parquet", n) for n in ("gemm", "attention_prefill", "attention_decode", "moe", "allreduce", "nccl")}
    g = {d: gemm(t["gemm"].only(dtype=d), d, peak, bw) for d in np.unique(t["gemm"]["dtype"])}
    ar = t["allreduce"].only(impl="vllm_graph")
    comm = CommCurve(source="allreduce", message_bytes={int(n): tuple(ar.only(gpus=n).number("message_bytes")) for n in np.unique(ar["gpus"])}, time_s={int(n): tuple(ar.only(gpus=n).time_s) for n in np.unique(ar["gpus"])})
    return Profile(schema=1, name=profile_name(system), engine="vLLM 0.14.0" if system.startswith("a100") else "vLLM 0.24.0", created=date.today().isoformat(), device=dev, gemm=g,
        prefill_attention={d: prefill(t["attention_prefill"].only(kv_dtype=d), d, peak, bw) for d in np.unique(t["attention_prefill"]["kv_dtype"])},
        decode_attention={d: decode(t["attention_decode"].only(kv_dtype=d), d, bw) for d in np.unique(t["attention_decode"]["kv_dtype"])},
        moe={d: moe(t["moe"].only(dtype=d), d, peak, bw) for d in np.unique(t["moe"]["dtype"])}, all_reduce=comm,
        elementwise=ElementwiseCurve(source="first version: GEMM floor and 80% of the vendor's bandwidth", launch_s=float(t["gemm"].time_s.min()), bytes_per_s=0.8 * bw))
