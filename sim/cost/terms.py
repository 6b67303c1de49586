"""The terms of a step: what a model asks of a profile's curves, in seconds over all layers of one GPU.

A layer is: norm, QKV, rotary embedding and KV write, attention, output projection, all-reduce, norm, gate
and up, activation, down, all-reduce; experts in place of the MLP where the model has them. Token counts are
those computed, padding included. Byte counts of the small kernels (norms and so on) are what each reads and
writes once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sim.cost.served_kernels import ServedKernels
from sim.kv.compression import KvCompression
from sim.model import WEIGHT_BYTES, ModelSpec
from sim.profile import HostOverhead, Profile
from workloads.errors import ConfigError

Float = NDArray[np.float64]
Terms = dict[str, Float]

# Greedy sampling as LLMServingSim measured it (RTX 4090, RTX PRO 6000; vLLM 0.19): 25 us for one sequence, about
# ten launches, and 0.5 us more for each where the logits exceed L2: 2 bytes read and 4 written a logit.
_SAMPLER_KERNELS: Final = 10
_SAMPLER_BYTES: Final = 6


def total(terms: Terms) -> Float:
    """Sum the terms of a step, in their order."""
    first, *rest = terms.values()
    for term in rest:
        first = first + term
    return first


def _expert_kernels(profile: Profile, dtype: str) -> tuple[str, ...]:
    """Name the curves of an expert dtype.

    8-bit experts were measured per tensor (CUTLASS) and block-scaled (Triton; DeepGEMM on B200). On Hopper the
    first take 2 to 7 times as long and even longer than 16-bit ones (the `moe` rows of H100 and H200), which
    no engine would serve: it has both and takes the one that works.
    """
    if dtype == "mxfp4":
        return ("w4a16_mxfp4",)
    if dtype != "fp8":
        return (dtype,)
    return tuple(name for name in ("fp8", "fp8_block") if name in profile.moe) or (dtype,)


@dataclass(frozen=True, slots=True)
class StepTerms:
    """Curves of one profile, asked with the shapes of one model on one of `tp` GPUs."""

    model: ModelSpec
    profile: Profile
    tp: int
    weight_dtype: str
    expert_kernels: tuple[str, ...]
    """Curves of the experts that an engine can choose from: the fastest prices them."""
    kv_dtype: str
    compression: KvCompression
    kv_reads: tuple[tuple[float, float], ...]
    """(Share of the layers, share of their KV that decode attention reads); both kinds of layers alike."""

    @classmethod
    def of(
        cls,
        model: ModelSpec,
        profile: Profile,
        tp: int,
        weight_dtype: str,
        kv_cache_dtype: str,
        compression: KvCompression | None = None,
    ) -> StepTerms:
        if model.mla is not None:
            raise ConfigError(f"model: {model.name} uses latent attention (MLA), which is not priced for now")
        compression = compression or KvCompression()
        if compression.sliding_window is not None:
            window = compression.sliding_window
            model = replace(model, sliding_window=window, num_window_layers=model.num_layers)
        kv_dtype = model.resolve_kv_dtype(kv_cache_dtype, weight_dtype)
        model.kv_bytes_per_token(kv_dtype, tp)  # refuses unknown dtypes and indivisible heads
        if kv_dtype == "float32" and compression != KvCompression():
            raise ConfigError("kv_compression: shrinks a 16-bit KV cache; this one is float32")
        experts = model.resolve_expert_dtype(weight_dtype)
        return cls(
            model=model,
            profile=profile,
            tp=tp,
            weight_dtype=model.resolve_weight_dtype(weight_dtype),
            expert_kernels=_expert_kernels(profile, experts) if model.moe is not None else (),
            kv_dtype=kv_dtype,
            compression=compression,
            kv_reads=compression.reads(model.num_layers),
        )

    @property
    def plain_dtype(self) -> str:
        """Of activations, LM head and router."""
        return self.model.plain_dtype(self.weight_dtype)

    @property
    def value_bytes(self) -> int:
        """Bytes of an activation."""
        return int(WEIGHT_BYTES[self.plain_dtype])

    @property
    def heads(self) -> int:
        return self.model.num_heads // self.tp

    @property
    def kv_heads(self) -> int:
        return self.model.kv_heads_per_gpu(self.tp)

    @property
    def decode_kv_dtype(self) -> str:
        """The KV dtype whose curve decode attention follows.

        On Hopper 8-bit KV is served no faster than 16-bit KV. In the served rows of Llama-70B with fp8 KV (H100
        and H200, vLLM) where the two curves differ by more than 6% of TPOT (5 to 64 sequences of up to 7,800
        tokens; 14 rows), TPOT by the 16-bit curve is 3% low in the median, by the 8-bit one 10%, and the more
        of the step attention is, the further the latter falls short: the gain of the kernel tables (1.3 to
        1.6 times there) does not show at longer contexts either. No row has longer ones.
        """
        return self._served(self.kv_dtype)

    @property
    def older_kv_dtype(self) -> str:
        """The same for tokens that have aged; int8 follows the curve of fp8, the 8-bit KV that was measured."""
        return self._served("bfloat16" if self.compression.older_dtype == "bfloat16" else "fp8")

    @property
    def kv_border(self) -> int:
        """Tokens at which contexts are cut for `window_context_tokens`; 0 where nothing asks for it."""
        return self.model.sliding_window or self.compression.recent_tokens or 0

    @property
    def kv_context_bytes(self) -> tuple[float, float]:
        """Bytes that decode attention reads for a token of context, and more for one within `kv_border`."""
        model, compression = self.model, self.compression
        token = model.kv_bytes_per_token_layer(self.kv_dtype, self.tp) * sum(w * s for w, s in self.kv_reads)
        if compression.recent_tokens is None or compression.sliding_window is not None:
            return model.num_full_layers * token, model.num_window_layers * token
        older = float(compression.older_kept * compression.older_bytes(model.head_dim))
        return model.num_layers * token * older, model.num_layers * token * (1 - older)

    @property
    def call_s(self) -> float:
        """The host's time to start one operation without a graph."""
        return (self.profile.host or HostOverhead(base_s=0.0, source="none fitted")).call_s

    def with_plain_weights(self) -> StepTerms | None:
        """Return the same with every weight in 16 bits that is not; None where nothing changes or is known."""
        if self.weight_dtype in ("bfloat16", "float32") or "bfloat16" not in self.profile.gemm:
            return None
        kernels = self.expert_kernels
        if self.model.moe is not None and self.model.expert_weight_dtype is None:
            kernels = ("bfloat16",)
            if "bfloat16" not in self.profile.moe:
                return None
        return replace(self, weight_dtype="bfloat16", expert_kernels=kernels)

    @property
    def attention_layout(self) -> tuple[str, int, int, int]:
        return self.kv_dtype, self.heads, self.kv_heads, self.model.head_dim

    def gemm_shapes(self) -> list[tuple[str, int, int, int]]:
        """(dtype, n, k, how many in the model) of the GEMMs over all tokens."""
        model, dtype, tp = self.model, self.weight_dtype, self.tp
        hidden, dense = model.hidden_size, model.num_layers - model.num_moe_layers
        shapes = [
            (dtype, (self.heads + 2 * self.kv_heads) * model.head_dim, hidden, model.num_layers),
            (dtype, hidden, self.heads * model.head_dim, model.num_layers),
        ]
        if dense:
            shapes.append((dtype, 2 * model.intermediate_size // tp, hidden, dense))
            shapes.append((dtype, hidden, model.intermediate_size // tp, dense))
        if model.moe is not None:
            shapes.append((self.plain_dtype, model.moe.num_experts, hidden, model.num_moe_layers))
            shared = model.moe.num_shared_experts * model.moe.expert_intermediate_size // tp
            if shared:
                shapes.append((dtype, 2 * shared, hidden, model.num_moe_layers))
                shapes.append((dtype, hidden, shared, model.num_moe_layers))
        return shapes

    def layers(self, tokens: ArrayLike) -> Terms:
        """Everything in the layers but attention, for a step of `tokens`."""
        count = np.asarray(tokens, dtype=np.float64)
        gemm = np.zeros_like(count)
        for dtype, n, k, times in self.gemm_shapes():
            gemm += times * self._kernels.gemm_s(dtype, count, n, k)
        terms = {"gemm": gemm, "elementwise": self._elementwise(count)}
        if self.model.moe is not None:
            moe = self.model.moe
            shape = (
                self.model.hidden_size,
                moe.expert_intermediate_size,
                moe.top_k,
                moe.num_experts,
                self.tp,
            )
            fastest = np.minimum.reduce(
                [self.profile.moe_s(name, count, *shape) for name in self.expert_kernels]
            )
            crowd = count * moe.top_k / moe.num_experts
            fastest = fastest * self._kernels.experts(self.expert_kernels[0], crowd)
            fastest += self._kernels.factors.routing_s
            terms["moe"] = self.model.num_moe_layers * fastest
        if self.tp > 1:
            message = count * self.model.hidden_size * self.value_bytes
            terms["all_reduce"] = 2 * self.model.num_layers * self._kernels.all_reduce_s(self.tp, message)
        terms["gemm"] = gemm * self._kernels.clocked_down(self.gemm_shapes(), count, total(terms))
        return terms

    def head(self, sequences: ArrayLike) -> Terms:
        """LM head, gathering of logits and sampling for `sequences`."""
        rows = np.asarray(sequences, dtype=np.float64)
        model = self.model
        columns = model.vocab_size // self.tp
        terms = {
            "lm_head": self._kernels.gemm_s(self.plain_dtype, rows, columns, model.hidden_size),
            "sampler": _SAMPLER_KERNELS
            * self.profile.elementwise_s(rows, model.vocab_size * _SAMPLER_BYTES / _SAMPLER_KERNELS),
        }
        if self.tp > 1:  # an all-gather moves half of what an all-reduce of the same result moves
            terms["all_reduce"] = 0.5 * self._kernels.all_reduce_s(
                self.tp, rows * model.vocab_size * float(self.value_bytes)
            )
        return terms

    def decode_attention(self, num_seqs: int, context_tokens: ArrayLike, *, window: bool) -> Float:
        """All layers with (or without) the sliding window; context is summed over the sequences.

        From HBM: between two visits to a layer's KV the other layers push it out of the L2.
        """
        layers = self.model.num_window_layers if window else self.model.num_full_layers
        size = (self.model.sliding_window or 0) if window else 0
        return layers * self._decode_attention(self.decode_kv_dtype, size, num_seqs, context_tokens)

    @property
    def shares_launches(self) -> bool:
        """Whether decodes beside chunks are known to run another kernel than alone."""
        return self.decode_kv_dtype in self.profile.shared_attention

    def shared_decode_attention(self, num_seqs: int, context_tokens: ArrayLike, *, window: bool) -> Float:
        """The same of decodes in a launch with chunks, where they `shares_launches`."""
        curve = self.profile.shared_attention[self.decode_kv_dtype]
        layers = self.model.num_window_layers if window else self.model.num_full_layers
        size = (self.model.sliding_window or 0) if window else 0
        context = np.asarray(context_tokens, dtype=np.float64)
        seconds = np.zeros_like(context)
        for weight, share in self.kv_reads:
            seconds += weight * curve.seconds(*self.attention_layout[1:], size, num_seqs, share * context)
        return layers * seconds

    @property
    def idle_tile_s(self) -> float:
        """Seconds of a step for each decode beside each TILE of the longest chunk's tokens after the first."""
        curve = self.profile.shared_attention.get(self.decode_kv_dtype)
        return 0.0 if curve is None else self.model.num_layers * self.heads * curve.idle_block_s

    def older_saving(self, num_seqs: int, context_tokens: ArrayLike) -> Float:
        """What all layers would save if all that is read were older tokens."""
        compression, dtype = self.compression, self.older_kv_dtype
        context = np.asarray(context_tokens, dtype=np.float64)
        recent = self._decode_attention(self.decode_kv_dtype, 0, num_seqs, context)
        if dtype == self.decode_kv_dtype:
            return np.zeros_like(recent)
        scales = float(2 * compression.older_bytes(self.model.head_dim))
        return self.model.num_layers * (recent - self._decode_attention(dtype, 0, num_seqs, scales * context))

    def ageing(self) -> tuple[float, float]:
        """Seconds of a step in which tokens age, and more for each of them.

        In each layer that owns KV a kernel of its own reads them and writes them once.
        """
        model, compression = self.model, self.compression
        owners = compression.num_owners(model.num_layers)
        layer = compression.stored_share(model.num_layers) * model.num_layers / owners
        moved = layer * compression.older_kept * (1 + compression.older_bytes(model.head_dim))
        size = float(moved * model.kv_bytes_per_token_layer(self.kv_dtype, self.tp))
        if not size:
            return 0.0, 0.0
        launch = float(self.profile.elementwise_s(0, size))
        return owners * launch, owners * (float(self.profile.elementwise_s(1, size)) - launch)

    def prefill_attention(self, new_tokens: ArrayLike, context_tokens: ArrayLike) -> Float:
        """All layers, without the launches: what one more sequence adds to a launch."""
        total = np.zeros(np.broadcast(new_tokens, context_tokens).shape)
        for layers, window in self.kinds_of_layers():
            seconds = self.profile.prefill_attention_s(
                *self.attention_layout, window, new_tokens, context_tokens
            )
            launch = self.profile.attention_launch_s(*self.attention_layout, window)
            total += layers * np.maximum(seconds - launch, 0.0)
        return total * self._kernels.factors.prefill_attention

    def prefill_launches(self) -> float:
        """Seconds of the attention launches of one step, over all layers."""
        return sum(
            layers * self.profile.attention_launch_s(*self.attention_layout, window)
            for layers, window in self.kinds_of_layers()
        )

    def kinds_of_layers(self) -> list[tuple[int, int]]:
        """(how many layers, their window or 0)."""
        model = self.model
        kinds = [(model.num_full_layers, 0), (model.num_window_layers, model.sliding_window or 0)]
        return [(layers, window) for layers, window in kinds if layers]

    def bytes_moved(
        self,
        tokens: int,
        context_tokens: int,
        window_context_tokens: int,
        chunks: Sequence[tuple[int, int]],
    ) -> tuple[float, float]:
        """Bytes that a step reads from HBM (weights and KV), and that each GPU sends to the others."""
        model, border = self.model, self.kv_border
        far, near = self.kv_context_bytes
        kv = far * (context_tokens + sum(new + computed for new, computed in chunks))
        reach = sum(new + min(computed, border) for new, computed in chunks)
        kv += near * (window_context_tokens + reach)
        hbm = self._weight_bytes_read(tokens) + kv
        message = tokens * model.hidden_size * self.value_bytes
        # A ring moves 2 (g - 1) / g of the message (Patarasu and Yuan, 2009); two all-reduces a layer.
        return hbm, 2 * model.num_layers * message * 2 * (self.tp - 1) / self.tp

    def extrapolated(self, max_tokens: int, max_seqs: int, longest: int, deepest: int) -> dict[str, str]:
        """Terms that such steps ask outside their measured range.

        `longest` is the longest prompt's context, `deepest` the most tokens computed before a chunk.
        """
        outside, layout = self.profile.outside, self.attention_layout[1:]
        names = ("heads", "kv_heads", "head_dim")
        heads = dict(zip(names, layout, strict=True))
        said = [
            outside("gemm", dtype=dtype, m=[1, max_tokens], n=n, k=k) for dtype, n, k, _ in self.gemm_shapes()
        ]
        said += [
            outside(
                "prefill_attention",
                kv_dtype=self.kv_dtype,
                **heads,
                new_tokens=min(longest, max_tokens),
                context_tokens=[0, deepest],
            ),
            outside("decode_attention", kv_dtype=self.decode_kv_dtype, **heads, num_seqs=max_seqs),
        ]
        if self.model.moe is not None:
            said += [outside("moe", dtype=name, tokens=[1, max_tokens]) for name in self.expert_kernels]
        if self.tp > 1:
            message = max_tokens * self.model.hidden_size * self.value_bytes
            said.append(outside("all_reduce", gpus=self.tp, message_bytes=message))
        return {text.split(":")[0]: text for text in said if text is not None}

    def _served(self, kv_dtype: str) -> str:
        return "bfloat16" if self.profile.device.compute_capability == "9.0" else kv_dtype

    def _decode_attention(self, dtype: str, window: int, num_seqs: int, context_tokens: ArrayLike) -> Float:
        """One layer, on the average of the layers; a kernel that reads a share of the KV reads as much context."""
        layout = (dtype, *self.attention_layout[1:])
        context = np.asarray(context_tokens, dtype=np.float64)
        seconds = np.zeros_like(context)
        for weight, share in self.kv_reads:
            seconds += weight * self._kernels.decode_attention_s(layout, window, num_seqs, share * context)
        return seconds

    @property
    def _kernels(self) -> ServedKernels:
        return ServedKernels(self.profile)

    def _weight_bytes_read(self, tokens: int) -> float:
        """All weights, but of the experts only those that are met."""
        model = self.model
        linear = WEIGHT_BYTES[self.weight_dtype]
        read = model.vocab_size * model.hidden_size * float(self.value_bytes) / self.tp
        read += sum(n * k * times * linear for _, n, k, times in self.gemm_shapes())
        if model.moe is not None:
            moe = model.moe
            met = moe.num_experts * (1 - (1 - moe.top_k / moe.num_experts) ** tokens)
            one = 3.0 * model.hidden_size * moe.expert_intermediate_size / self.tp
            dtype = "mxfp4" if "w4a16_mxfp4" in self.expert_kernels else self.expert_kernels[0]
            read += model.num_moe_layers * met * one * WEIGHT_BYTES[dtype]
        return read

    def _elementwise(self, tokens: Float) -> Float:
        """Norms, rotary embedding, KV write and activation, with the bytes that reach HBM.

        What the kernel before has just written is still in L2: of the four tensors that a norm with residual
        touches two count, of rotary embedding's two one (as LLMServingSim's tables of both GPUs show).
        """
        model, small, size = self.model, self.profile.elementwise_s, self.value_bytes
        norm = small(tokens, 2 * model.hidden_size * size)
        rope = small(tokens, (self.heads + self.kv_heads) * model.head_dim * size)
        write = small(tokens, 2 * self.kv_heads * model.head_dim * size)
        layer = 2 * norm + (2 if model.qk_norm else 1) * rope + write
        dense = model.num_layers - model.num_moe_layers
        gate = small(tokens, 3 * model.intermediate_size // self.tp * size)
        embedding = small(tokens, 2 * model.hidden_size * size)
        return model.num_layers * layer + dense * gate + embedding + norm
