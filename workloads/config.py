"""The `workload:` section of a scenario. Every field acts, or is an error that says what to write instead."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from workloads.bounds import LEAST_BURSTINESS, LEAST_RATE, LONGEST_S, MOST_RATE, Count
from workloads.errors import ConfigError
from workloads.lengths import TAG, Lengths
from workloads.sessions import SessionsConfig
from workloads.tenants import TenantConfig

_FROZEN = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _number_or_inf(value: Any) -> Any:  # noqa: ANN401 - whatever a scenario holds
    if value == "inf":
        return math.inf
    if isinstance(value, bool | str):
        raise PydanticCustomError("number", 'a number above 0, or "inf", is expected')
    return value


def _inf_or_number(value: float) -> float | str:
    return "inf" if math.isinf(value) else value


def _bounded_rate(value: float) -> float:
    if math.isfinite(value) and not LEAST_RATE <= value <= MOST_RATE:
        raise PydanticCustomError(
            "number", f"a rate is at least {LEAST_RATE:g} and at most {MOST_RATE:g} requests/s"
        )
    return value


def _bounded_burstiness(value: float) -> float:
    if value < LEAST_BURSTINESS:
        raise PydanticCustomError("number", f"at least {LEAST_BURSTINESS:g} is expected (gaps of CV 100)")
    return value


_Infinite = Annotated[
    float,
    Field(gt=0, allow_inf_nan=True),
    BeforeValidator(_number_or_inf),
    PlainSerializer(_inf_or_number, return_type=float | str),
]
Rate = Annotated[_Infinite, AfterValidator(_bounded_rate)]
Burstiness = Annotated[_Infinite, AfterValidator(_bounded_burstiness)]
RampRate = Annotated[float, Field(gt=0), AfterValidator(_bounded_rate)]


class WorkloadConfig(BaseModel):
    """What arrives, when. One of: a trace (file or shipped model), or lengths; open stream or closed loop."""

    model_config = _FROZEN

    trace: Annotated[str, Field(min_length=1)] | None = None
    """A shipped model's name (azure-conv, ...) or the path of a trace or model file."""
    format: str | None = None
    """Format of the trace file, where its content should not decide."""
    drop_failed: bool = False
    """Keep requests that failed in the source out, and count them; else they are an error."""
    input_tokens: Lengths | None = None
    """Prompt lengths in tokens; with sessions, the new tokens of each turn."""
    output_tokens: Lengths | None = None
    """Answer lengths in tokens."""
    request_rate: Rate | None = None
    """Requests per second, or "inf" (all at the start). Without it a trace keeps its own times."""
    burstiness: Burstiness | None = None
    """Gamma shape k of the gaps, CV 1/sqrt(k): 1 is Poisson, "inf" constant. Redraws a trace's times."""
    rescale_arrivals: bool = False
    """As vLLM's client: scale drawn times so that the last request leaves at num_requests / request_rate."""
    ramp_up_strategy: Literal["linear", "exponential"] | None = None
    """Instead of request_rate: from ramp_up_start_rps to ramp_up_end_rps over the requests, as vLLM."""
    ramp_up_start_rps: RampRate | None = None
    ramp_up_end_rps: RampRate | None = None
    max_concurrency: Count | None = None
    """Closed loop: so many requests in flight, the next is sent when one finishes; so many sessions in progress, where
    turns wait for answers."""
    num_requests: Count | None = None
    """How many requests; of a trace file, the first so many; of sessions, how many turns."""
    duration_s: Annotated[float, Field(gt=0, le=LONGEST_S)] | None = None
    """Only requests that arrive before this time, in seconds."""
    sessions: SessionsConfig | None = None
    """Multi-turn sessions whose prompts repeat what was said and share prefixes."""
    tenants: dict[str, TenantConfig] | None = None
    """Requests (whole sessions) are shared out by weight; no prefix is shared between tenants."""

    @model_validator(mode="after")
    def _coherent(self) -> WorkloadConfig:
        for check in (_check_source, _check_ramp, _check_closed_loop, _check_open, _check_sessions):
            problem = check(self)
            if problem is not None:
                raise _at_field(problem)
        return self

    @property
    def constant_rate(self) -> bool:
        """Whether a finite request_rate is given."""
        return self.request_rate is not None and math.isfinite(self.request_rate)


def _at_field(problem: str) -> ValidationError:
    """Return `field: message` as an error of that field, so that whoever reports it names the place once."""
    field, _, message = problem.partition(": ")
    error = PydanticCustomError("workload", "{message}", {"message": message})
    return ValidationError.from_exception_data(
        "WorkloadConfig", [{"type": error, "loc": (field,), "input": {}}]
    )


def _check_source(config: WorkloadConfig) -> str | None:
    lengths = {"input_tokens": config.input_tokens, "output_tokens": config.output_tokens}
    given = [name for name, value in lengths.items() if value is not None]
    if config.trace is not None and given:
        return f"{given[0]}: the trace {config.trace!r} has its own lengths; give one or the other"
    if config.trace is None and not given:
        return "trace: nothing to run; give a trace, or input_tokens and output_tokens"
    if len(given) == 1:
        other = next(name for name in lengths if name not in given)
        return f"{other}: missing beside {given[0]}; give both"
    if config.trace is None and (config.format is not None or config.drop_failed):
        name = "format" if config.format is not None else "drop_failed"
        return f"{name}: acts on a trace file only; give trace, or leave {name} out"
    if config.tenants is not None and not config.tenants:
        return "tenants: names no tenant; give at least one, or leave tenants out"
    return None


def _check_ramp(config: WorkloadConfig) -> str | None:
    fields = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")
    missing = [name for name in fields if getattr(config, name) is None]
    if len(missing) == len(fields):
        return None
    if missing:
        return f"{missing[0]}: missing; a ramp needs {', '.join(fields)}"
    if config.request_rate is not None:
        return f"request_rate: {config.request_rate:g} beside ramp_up_strategy, which sets the rate; give one"
    if config.rescale_arrivals:
        return "rescale_arrivals: needs one request_rate, and a ramp has many; leave it out"
    return None


def _check_closed_loop(config: WorkloadConfig) -> str | None:
    if config.max_concurrency is None:
        return None
    if config.constant_rate:
        return (
            f"max_concurrency: {config.max_concurrency} beside request_rate {config.request_rate:g}; "
            'arrivals by rate behind a client limit are not offered: give one ("inf" is allowed)'
        )
    for name in ("burstiness", "rescale_arrivals", "ramp_up_strategy", "duration_s"):
        if getattr(config, name):
            return f"{name}: has no meaning in a closed loop (max_concurrency); leave one of them out"
    if config.sessions is not None and not config.sessions.waits_for_answer:
        return (
            f"max_concurrency: {config.max_concurrency} counts sessions in progress, whose turns wait for answers; "
            "leave it out, or sessions.waits_for_answer: false"
        )
    return None


def _check_open(config: WorkloadConfig) -> str | None:
    closed = config.max_concurrency is not None
    if config.trace is None:
        timed = config.request_rate is not None or config.ramp_up_strategy is not None
        if not (closed or timed):
            return (
                "request_rate: missing; give a rate in requests/s, a ramp, or max_concurrency (closed loop)"
            )
        if config.num_requests is None and config.duration_s is None:
            return "num_requests: missing; give num_requests" + ("" if closed else " or duration_s")
    if config.request_rate is not None and math.isinf(config.request_rate):
        for name in ("burstiness", "rescale_arrivals", "duration_s"):
            if getattr(config, name):
                return (
                    f"{name}: has no effect at an infinite request_rate; leave it out or give a finite rate"
                )
    if config.ramp_up_strategy and config.trace is None and config.num_requests is None:
        return "num_requests: missing; a ramp runs over a number of requests"
    if config.rescale_arrivals and config.duration_s is not None:
        return "rescale_arrivals: sets the last arrival, and so does duration_s; give num_requests instead"
    return None


def _check_sessions(config: WorkloadConfig) -> str | None:
    if config.sessions is None:
        return None
    if config.trace is not None:
        return (
            f"sessions: the trace {config.trace!r} has its own; give input_tokens and output_tokens instead"
        )
    for name in ("ramp_up_strategy", "rescale_arrivals"):
        if getattr(config, name):
            return f"{name}: not offered together with sessions, which start at request_rate / turns"
    if config.max_concurrency is None and not config.constant_rate:
        return "request_rate: sessions need a finite rate in requests/s, or max_concurrency"
    return None


def parse_workload(section: Mapping[str, Any]) -> WorkloadConfig:
    """Return the section as a config; raises ConfigError with one line that names field, value and remedy."""
    try:
        return WorkloadConfig.model_validate(section)
    except ValidationError as error:
        raise ConfigError(describe(error, "workload")) from None


def describe(error: ValidationError, section: str) -> str:
    """Return the first problem of a validation as one line."""
    first = error.errors(include_url=False)[0]
    path = [part for part in map(str, first["loc"]) if not part.startswith(TAG)]
    where = ".".join([section, *path])
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(path[-1], WorkloadConfig.model_fields, 1)
        return f"{where}: unknown field" + (f"; did you mean {near[0]}?" if near else "")
    if first["type"] == "workload":
        return f"{where}: {first['msg']}"
    return f"{where}: {first['msg']} (found {_short(first.get('input'))})"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
