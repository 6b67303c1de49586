"""Profile: what the work of an engine step costs on one device, as fitted curves with their provenance.

All times are seconds, all sizes bytes. The file format is one JSON document; `calibration` writes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from numpy.typing import ArrayLike
from pydantic import Field, ValidationError

from sim.curves.comm import CommCurve
from sim.curves.decode import DecodeCurve
from sim.curves.elementwise import ElementwiseCurve
from sim.curves.gemm import GemmCurve
from sim.curves.moe import MoeCurve, MoeShape
from sim.curves.prefill import PrefillCurve
from sim.curves.shared import SharedLaunchCurve
from sim.curves.term import BytesPerSecond, Count, Curve, Float, FlopsPerSecond, Model, SecondsOrZero
from sim.served import Served
from workloads.errors import ConfigError

C = TypeVar("C", bound=Curve)
SHIPPED = Path(__file__).parent / "profiles"


class Device(Model):
    """The machine, per GPU. Bandwidths are the vendor's figures, one direction; fitted ones are in the curves."""

    memory_bytes: int = Field(ge=1, le=10**15)
    memory_source: str
    """Where `memory_bytes` comes from: the driver's report, or the nominal size."""
    hbm_bytes_per_s: BytesPerSecond
    flops_per_s: dict[str, FlopsPerSecond]
    """Dense peak per input type."""
    sm_count: Count
    l2_bytes: Count
    pcie_bytes_per_s: BytesPerSecond
    nvlink_bytes_per_s: BytesPerSecond | None
    """None where GPUs talk over PCIe."""
    nic_bytes_per_s: BytesPerSecond | None = None
    gpus_per_node: int = Field(ge=1, le=10**6)
    compute_capability: str
    power_watt: float | None = Field(default=None, gt=0, le=1e6)
    price_per_gpu_hour: float | None = Field(default=None, gt=0, le=1e6)
    source: str


class HostOverhead(Model):
    """Time of a step that no kernel explains: scheduler, launch or graph replay, sampling, output."""

    base_s: SecondsOrZero
    per_layer_s: SecondsOrZero = 0.0
    per_seq_s: SecondsOrZero = 0.0
    per_token_s: SecondsOrZero = 0.0
    cpu_base_s: SecondsOrZero = 0.0
    cpu_per_seq_s: SecondsOrZero = 0.0
    """The host's own work of a step: behind the GPU's under async scheduling, before it otherwise."""
    piece_s: SecondsOrZero = 0.0
    """Of each layer, in mixed steps that replay graphs: attention runs between the pieces."""
    call_s: SecondsOrZero = 20e-6
    """To start one operation of a layer where no CUDA graph does; `sim/cost/eager.py` says whence."""
    per_request_s: SecondsOrZero = 0.0
    """Of every request, on its way to the engine's queue and of its tokens back (API server); requests do not wait for
    each other there."""
    per_stream_s: SecondsOrZero = 0.0
    """More of it for each sequence that the engine runs: the tokens of all leave through the same process."""
    per_input_token_s: SecondsOrZero = 0.0
    """For each token of a prompt, before the engine has it (tokeniser); one prompt after the other."""
    source: str
    notes: str = ""


class Residual(Model):
    """|predicted / measured - 1| on whole shapes that the fit had not seen."""

    term: str
    held_out: str
    """What a whole shape is, and which were held out."""
    rows: Count
    median: float = Field(ge=0, le=1e6)
    p90: float = Field(ge=0, le=1e6)
    spike_share: float = Field(ge=0, le=1)
    """Share of all rows that stand out from their neighbours by more than the term's spike limit."""
    roofline_median: float | None = Field(default=None, ge=0, le=1e6)
    roofline_p90: float | None = Field(default=None, ge=0, le=1e6)
    """The same for t0 + max(FLOP / P, bytes / W) with three fitted parameters."""


class PredictionError(Model):
    """|predicted / measured - 1| of a metric on whole curves of served runs that the profile's fit had not seen.

    low, high   factors on a prediction between which nine in ten measurements lie
    """

    metric: str
    """A key of a result file of `vllm bench serve`."""
    kind: Literal["dense", "moe"]
    """Of the models that were served."""
    rows: Count
    curves: Count
    median: float = Field(ge=0, le=1e6)
    p90: float = Field(ge=0, le=1e6)
    low: float = Field(gt=0, le=1e6)
    high: float = Field(gt=0, le=1e6)

    def interval(self, predicted: float) -> tuple[float, float]:
        """Say between which values a measurement lies with a probability of 90%."""
        return predicted * self.low, predicted * self.high


class Profile(Model):
    """Curves of one device and engine version, with sources, residuals and a content hash."""

    schema_version: Literal[1] = Field(alias="schema")
    name: str
    engine: str
    created: str
    device: Device
    gemm: dict[str, GemmCurve]
    prefill_attention: dict[str, PrefillCurve]
    decode_attention: dict[str, DecodeCurve]
    shared_attention: dict[str, SharedLaunchCurve] = Field(default_factory=dict)
    """Decodes beside chunks, per KV dtype; where it is missing they take what they take alone."""
    moe: dict[str, MoeCurve] = Field(default_factory=dict)
    all_reduce: CommCurve | None = None
    elementwise: ElementwiseCurve
    host: HostOverhead | None = None
    served: Served | None = None
    residuals: tuple[Residual, ...] = ()
    errors: tuple[PredictionError, ...] = ()

    def gemm_s(self, dtype: str, m: ArrayLike, n: ArrayLike, k: ArrayLike) -> Float:
        """One GEMM of m tokens, n output and k input features (after tensor-parallel division)."""
        return self._pick("gemm", self.gemm, dtype).seconds(m, n, k)

    def prefill_attention_s(
        self,
        kv_dtype: str,
        heads: int,
        kv_heads: int,
        head_dim: int,
        window: int,
        new_tokens: ArrayLike,
        context_tokens: ArrayLike,
        num_seqs: ArrayLike = 1,
    ) -> Float:
        """Causal attention of one layer over `context_tokens` cached and `new_tokens` new tokens.

        One sequence per entry, alone in its launch; with `num_seqs` that many equal sequences in one launch.
        """
        curve = self._pick("prefill_attention", self.prefill_attention, kv_dtype)
        return curve.seconds(heads, kv_heads, head_dim, window, new_tokens, context_tokens, num_seqs)

    def decode_attention_s(
        self,
        kv_dtype: str,
        heads: int,
        kv_heads: int,
        head_dim: int,
        window: int,
        num_seqs: ArrayLike,
        context_tokens: ArrayLike,
        *,
        from_hbm: bool = False,
    ) -> Float:
        """One new token for each of `num_seqs` sequences whose contexts sum to `context_tokens`; one layer.

        As measured on one cache read over and over; `from_hbm` is for a cache that other layers pushed out of
        L2 meanwhile.
        """
        layout = (heads, kv_heads, head_dim, window)
        curve = self._pick("decode_attention", self.decode_attention, kv_dtype)
        return curve.seconds(*layout, num_seqs, context_tokens, from_hbm=from_hbm)

    def attention_launch_s(
        self,
        kv_dtype: str,
        heads: int,  # noqa: ARG002 - the launch is alike for all head counts; the signature is the terms'
        kv_heads: int,  # noqa: ARG002
        head_dim: int,
        window: int,
        phase: Literal["prefill", "decode"] = "prefill",
    ) -> float:
        """The fixed part of one launch: several sequences cost launch + sum(t_i - launch)."""
        if phase == "prefill":
            return self._pick("prefill_attention", self.prefill_attention, kv_dtype).launch(head_dim, window)
        return self._pick("decode_attention", self.decode_attention, kv_dtype).launch(head_dim, window)

    def moe_s(
        self,
        dtype: str,
        tokens: ArrayLike,
        hidden: int,
        inter: int,
        top_k: int,
        experts: int,
        tp: int,
        ep: int = 1,
        distribution: str = "power_law_1.2",
    ) -> Float:
        """Expert FFN of one layer on one rank; `tokens` enter the layer over all ranks; `inter` is before TP."""
        curve = self._pick("moe", self.moe, dtype)
        if curve.table is not None and distribution not in curve.distributions:
            known = ", ".join(curve.distributions)
            raise ConfigError(f"profile {self.name}: no moe load distribution {distribution}; it has {known}")
        shape = MoeShape(hidden=hidden, inter=inter, top_k=top_k, experts=experts, tp=tp, ep=ep)
        return curve.seconds(tokens, shape, distribution)

    def all_reduce_s(self, gpus: int, message_bytes: ArrayLike) -> Float:
        """All-reduce inside a CUDA graph as the engine dispatches it; see CommCurve for the rule."""
        if self.all_reduce is None:
            raise ConfigError(
                f"profile {self.name}: no all-reduce curve, so hardware.tensor_parallel_size must be 1"
            )
        if gpus not in self.all_reduce.time_s:
            known = ", ".join(map(str, sorted(self.all_reduce.time_s)))
            raise ConfigError(f"profile {self.name}: all-reduce measured for {known} GPUs, not for {gpus}")
        return self.all_reduce.seconds(gpus, message_bytes)

    def elementwise_s(self, tokens: ArrayLike, bytes_per_token: ArrayLike) -> Float:
        """One memory-bound kernel (norm, rotary embedding, activation) that moves so many bytes a token."""
        return self.elementwise.seconds(tokens, bytes_per_token)

    def outside(self, term: str, **axes: ArrayLike | str) -> str | None:
        """Say which axis of a query leaves the measured range; None where nothing is extrapolated.

        `dtype`, `kv_dtype` or `gpus` select the curve, the other axes carry the names of the term's arguments.
        """
        curve = self._curve(term, axes)
        numbers = {axis: values for axis, values in axes.items() if not isinstance(values, str)}
        said = None if curve is None else curve.outside(numbers)
        return None if said is None else f"{term}: {said}"

    @cached_property
    def hbm_bytes_per_s(self) -> float:
        """HBM bandwidth that a kernel reaches: the best measured over keys and values far larger than the L2.

        On the shipped devices 79 to 94% of the vendor's figure (H200: 4.36 of 4.8 TB/s).
        """
        return max(fit.hbm_bytes_per_s for curve in self.decode_attention.values() for fit in curve.regimes)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of the canonical content; the date of the fit is left out, so equal curves hash equally."""
        content = self.model_dump(mode="json", by_alias=True, exclude={"created"})
        if not self.shared_attention:  # a profile without it is what it was before there was such a term
            del content["shared_attention"]
        return hashlib.sha256(_canonical(content)).hexdigest()

    def to_json(self) -> str:
        return json.dumps(self.model_dump(mode="json", by_alias=True), indent=1, sort_keys=False) + "\n"

    def with_host(self, host: HostOverhead) -> Self:
        """Return the same profile with step overheads, and so with another hash."""
        return type(self).model_validate({**self.model_dump(by_alias=True), "host": host.model_dump()})

    def with_errors(self, errors: Sequence[PredictionError]) -> Self:
        """Return the same profile with what is known of its error."""
        return type(self).model_validate(self.model_dump(by_alias=True) | {"errors": tuple(errors)})

    def errors_for(self, *, moe: bool) -> tuple[PredictionError, ...]:
        """What is known of the error for models with experts, or for those without."""
        return tuple(error for error in self.errors if error.kind == ("moe" if moe else "dense"))

    def with_served(self, served: Served) -> Self:
        """Return the same profile with factors of the served engine, and so with another hash."""
        return type(self).model_validate({**self.model_dump(by_alias=True), "served": served.model_dump()})

    def _curve(self, term: str, axes: dict[str, Any]) -> Curve | None:
        curves = getattr(self, term)
        if not isinstance(curves, dict):
            return curves
        return self._pick(term, curves, str(axes.get("dtype", axes.get("kv_dtype"))))

    def _pick(self, term: str, curves: dict[str, C], dtype: str) -> C:
        try:
            return curves[dtype]
        except KeyError:
            known = ", ".join(curves) or "none"
            raise ConfigError(f"profile {self.name}: no {term} curve for {dtype}; it has {known}") from None


def _canonical(content: object) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def shipped_profiles() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob("*.json"))


def load_profile(name_or_path: str | Path) -> Profile:
    """Read a shipped profile by name, or a profile file by path."""
    path = Path(name_or_path)
    if path.suffix != ".json" and not path.is_file():
        path = SHIPPED / f"{name_or_path}.json"
        if not path.is_file():
            raise ConfigError(
                f"hardware: no profile {name_or_path}; shipped are {', '.join(shipped_profiles())}"
            )
    try:
        return Profile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {_first_problem(error)}") from error


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"])) or "document"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{where}: {first['msg']}{more}"
