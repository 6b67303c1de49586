// What a transformer does between its matrix products.
//
// Compile with
//   ACT         BF16 or FP16
#include "common.cuh"

#define NUM_THREADS 256

/// out = x / sqrt(mean(x^2) + eps) * weight, row by row (Zhang and Sennrich, 2019), in float32.
/// grid: rows; block: 256 threads. Rows are `words` 16-byte words, those of x `x_stride` values apart.
extern "C" __global__ void __launch_bounds__(NUM_THREADS)
rms_norm(uint4* RESTRICT out, const u16* RESTRICT x, const uint4* RESTRICT weight, int words, int x_stride, float eps)
{
    __shared__ float sums[NUM_THREADS / WARP];
    const uint4* row = (const uint4*)(x + (long long)blockIdx.x * x_stride);
    float values[8], gains[8], squares = 0.0f;
    for (int i = threadIdx.x; i < words; i += NUM_THREADS) {
        unpack8<ACT>(row[i], values);
#pragma unroll
        for (int k = 0; k < 8; ++k) squares += values[k] * values[k];
    }
    squares = sum_over_warp(squares);
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = squares;
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < NUM_THREADS / WARP; ++w) total += sums[w];
    const float scale = 1.0f / sqrtf(total / (float)(8 * words) + eps);
    for (int i = threadIdx.x; i < words; i += NUM_THREADS) {
        unpack8<ACT>(row[i], values);
        unpack8<ACT>(weight[i], gains);
#pragma unroll
        for (int k = 0; k < 8; ++k) values[k] *= scale * gains[k];
        out[(long long)blockIdx.x * words + i] = pack8<ACT>(values);
    }
}

DEVICE void rotate(u16* at, int half, float cosine, float sine)
{
    const float low = to_float<ACT>(at[0]), high = to_float<ACT>(at[half]);
    at[0] = (u16)pack<ACT>(low * cosine - high * sine, 0.0f);
    at[half] = (u16)pack<ACT>(high * cosine + low * sine, 0.0f);
}

/// Rotary position embedding in place, dimension i with i + head_dim/2 (as Llama's checkpoints have them).
/// grid: tokens; block: 256 threads. table: [positions, 2, head_dim/2]: cosines, then sines.
extern "C" __global__ void __launch_bounds__(NUM_THREADS)
rope(u16* RESTRICT q, u16* RESTRICT k, const int* RESTRICT positions, const float* RESTRICT table, int num_heads,
     int num_kv_heads, int head_dim, int q_stride, int k_stride)
{
    const int token = blockIdx.x, half = head_dim / 2;
    const float* cosines = table + (long long)positions[token] * head_dim;
    for (int i = threadIdx.x; i < (num_heads + num_kv_heads) * half; i += NUM_THREADS) {
        const int head = i / half, d = i % half;
        u16* at = head < num_heads ? q + (long long)token * q_stride + head * head_dim
                                   : k + (long long)token * k_stride + (head - num_heads) * head_dim;
        rotate(at + d, half, cosines[d], cosines[half + d]);
    }
}

/// out = silu(gate) * up, where a row of `gate_up` is gate, then up; rows of `out` are `words` 16-byte words.
/// grid: (parts of a row, rows); block: 256 threads.
extern "C" __global__ void __launch_bounds__(NUM_THREADS)
silu_mul(uint4* RESTRICT out, const uint4* RESTRICT gate_up, int words)
{
    const long long row = blockIdx.y;
    for (int i = blockIdx.x * NUM_THREADS + threadIdx.x; i < words; i += gridDim.x * NUM_THREADS) {
        float gate[8], up[8];
        unpack8<ACT>(gate_up[row * 2 * words + i], gate);
        unpack8<ACT>(gate_up[row * 2 * words + words + i], up);
#pragma unroll
        for (int k = 0; k < 8; ++k) gate[k] = gate[k] / (1.0f + exp2_approx(-1.44269504f * gate[k])) * up[k];
        out[row * words + i] = pack8<ACT>(gate);
    }
}

/// x += y, in float32. grid: any; block: 256 threads; `words` of 16 bytes.
extern "C" __global__ void __launch_bounds__(NUM_THREADS) add(uint4* x, const uint4* RESTRICT y, long long words)
{
    const long long stride = (long long)gridDim.x * NUM_THREADS;
    for (long long i = (long long)blockIdx.x * NUM_THREADS + threadIdx.x; i < words; i += stride) {
        float left[8], right[8];
        unpack8<ACT>(x[i], left);
        unpack8<ACT>(y[i], right);
#pragma unroll
        for (int k = 0; k < 8; ++k) left[k] += right[k];
        x[i] = pack8<ACT>(left);
    }
}
