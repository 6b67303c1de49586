"""A model of a trace: joint length quantiles, arrival process, prefix sharing. Statistics, not the trace."""

from __future__ import annotations

import json
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from workloads.arrivals import Bursts, Modulated
from workloads.config import describe
from workloads.errors import ConfigError
from workloads.prefixes import PrefixModel
from workloads.streams import Streams
from workloads.trace import BlockHashes, Int64

KIND: Final = "servetwin-workload-model"
SHIPPED = ("azure-conv", "azure-code", "mooncake-conv", "arxiv-summarization")

_FROZEN = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

Quantiles = tuple[Annotated[float, Field(ge=0)], ...]


class JointLengths(BaseModel):
    """Input quantiles, and output quantiles per slice of input (slices of equal probability).

    Between the given probabilities a quantile is linear; the first and the last are least and greatest.
    """

    model_config = _FROZEN

    input_probabilities: Quantiles
    input_tokens: Quantiles
    output_probabilities: Quantiles
    output_tokens: Annotated[tuple[Quantiles, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _matching(self) -> JointLengths:
        pairs = [(self.input_probabilities, self.input_tokens)]
        pairs += [(self.output_probabilities, row) for row in self.output_tokens]
        for probabilities, tokens in pairs:
            if len(probabilities) != len(tokens) or len(tokens) < 2:
                raise PydanticCustomError(
                    "model", "as many quantiles as probabilities are expected, at least 2"
                )
            if probabilities[0] != 0 or probabilities[-1] != 1 or np.any(np.diff(probabilities) <= 0):
                raise PydanticCustomError("model", "probabilities must rise from 0 to 1")
            if tokens[0] < 1 or np.any(np.diff(tokens) < 0):
                raise PydanticCustomError("model", "quantiles must ascend from 1 or more")
        return self

    def draw(self, streams: Streams, count: int) -> tuple[Int64, Int64, NDArray[np.float64]]:
        """Return input, output and the probability rank of each input."""
        rank = streams.of("inputs").random(count)
        level = streams.of("outputs").random(count)
        inputs = np.interp(rank, self.input_probabilities, self.input_tokens)
        outputs = np.empty(count)
        slices = np.minimum((rank * len(self.output_tokens)).astype(np.int64), len(self.output_tokens) - 1)
        for at, tokens in enumerate(self.output_tokens):
            here = slices == at
            outputs[here] = np.interp(level[here], self.output_probabilities, tokens)
        return np.rint(inputs).astype(np.int64), np.rint(outputs).astype(np.int64), rank


class GapLaw(BaseModel):
    """Gaps in mean gaps at normal scores, and the level that gaps in a row have in common (see Bursts)."""

    model_config = _FROZEN

    scores: tuple[float, ...]
    gaps: tuple[Annotated[float, Field(gt=0)], ...]
    level_share: Annotated[float, Field(ge=0, le=1)]
    level_hold: Annotated[float, Field(ge=1)]
    slope: float

    @model_validator(mode="after")
    def _matching(self) -> GapLaw:
        if len(self.scores) != len(self.gaps) or len(self.gaps) < 2:
            raise PydanticCustomError("model", "as many gaps as scores are expected, at least 2")
        if np.any(np.diff(self.scores) <= 0) or np.any(np.diff(self.gaps) < 0):
            raise PydanticCustomError("model", "scores must rise, and gaps must not fall")
        return self


class ArrivalModel(BaseModel):
    """Gaps at `rate` requests/s, times `relative` (one value per `step_s`).

    Gamma gaps of shape `burstiness`, or bursts where `gaps` says how. Gamma times fall on a clock that ticks every
    `tick_s` (0: a fine one).
    """

    model_config = _FROZEN

    rate: Annotated[float, Field(gt=0)]
    burstiness: Annotated[float, Field(gt=0)]
    step_s: Annotated[float, Field(gt=0)]
    relative: Annotated[Quantiles, Field(min_length=1)]
    tick_s: Annotated[float, Field(ge=0)] = 0.0
    gaps: GapLaw | None = None

    def process(self) -> Modulated | Bursts:
        """Return the process at its own rate."""
        return self._stretched(1.0)

    def at_rate(self, rate: float, requests: float) -> Modulated | Bursts:
        """Return the process stretched so that its first `requests` are expected to come at `rate`.

        As a trace cut to so many requests and rescaled: where its first minutes are quiet, they are sped up.
        """
        return self._stretched(requests / rate / self.process().expected_s(requests))

    def _stretched(self, by: float) -> Modulated | Bursts:
        rate, step_s, tick_s = self.rate / by, self.step_s * by, self.tick_s * by
        law = self.gaps
        if law is None:
            return Modulated(rate, self.burstiness, step_s, self.relative, tick_s)
        return Bursts(rate, step_s, self.relative, **law.model_dump())


class WorkloadModel(BaseModel):
    """Everything that is kept of a trace."""

    model_config = _FROZEN

    kind: Literal["servetwin-workload-model"] = KIND
    schema_version: Literal[1] = 1
    name: str
    source: str
    licence: str
    note: str = ""
    requests: Annotated[int, Field(ge=1)]
    lengths: JointLengths
    arrivals: ArrivalModel | None
    prefixes: PrefixModel | None

    @cached_property
    def text(self) -> str:
        """The model as a file: JSON, one line a field."""
        parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in self.model_dump().items()]
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def draw_requests(
        self, streams: Streams, count: int
    ) -> tuple[Int64, Int64, BlockHashes | None, Int64 | None]:
        """Return input and output tokens, block ids and conversations of `count` requests."""
        inputs, outputs, rank = self.lengths.draw(streams, count)
        if self.prefixes is None:
            return inputs, outputs, None, None
        hashes, talks = self.prefixes.draw(inputs, rank, streams)
        return inputs, outputs, hashes, talks


def load_model(name_or_path: str | Path) -> WorkloadModel:
    """Return a shipped model by name, or one from a file that `servetwin trace fit` wrote."""
    if name_or_path in SHIPPED:
        text = resources.files("workloads").joinpath("models", f"{name_or_path}.json").read_text("utf-8")
    else:
        text = Path(name_or_path).read_text("utf-8")
    try:
        return WorkloadModel.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"{name_or_path}: not a workload model: {describe(error, 'model')}") from None


def is_model_file(path: Path) -> bool:
    """Whether the file begins like a model of ours."""
    try:
        with path.open("rb") as file:
            return KIND.encode() in file.read(200)
    except OSError:
        return False
