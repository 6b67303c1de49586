// Values to 8 bits and back.
//
// Compile with
//   HEAD_DIM    64 or 128: values in a row
//   ACT         BF16 or FP16: the 16-bit side
//   KV          INT8 or E4M3: the 8-bit side
#include "narrow.cuh"

/// grid: blocks of 128 threads for `rows` rows. scales: int8: [rows], written; e4m3: [1], read.
extern "C" __global__ void __launch_bounds__(NUM_THREADS)
quantise(u8* RESTRICT out, float* RESTRICT scales, const u16* RESTRICT x, int rows)
{
    const int wanted = blockIdx.x * (NUM_THREADS / LANES) + threadIdx.x / LANES;
    const int row = min(wanted, rows - 1), lane = threadIdx.x % LANES;
    float values[8];
    unpack8<ACT>(((const uint4*)x)[(long long)row * LANES + lane], values);
#if KV == INT8
    const float scale = scale_of_row(values);
    if (wanted < rows && lane == 0) scales[row] = scale;
#else
    const float scale = scales[0];
#endif
    const uint2 narrowed = narrow(values, scale);
    if (wanted < rows) ((uint2*)out)[(long long)row * LANES + lane] = narrowed;
}

/// grid: blocks of 128 threads for `rows` rows. scales: as `quantise` has them.
extern "C" __global__ void __launch_bounds__(NUM_THREADS)
dequantise(u16* RESTRICT out, const u8* RESTRICT x, const float* RESTRICT scales, int rows)
{
    const int row = blockIdx.x * (NUM_THREADS / LANES) + threadIdx.x / LANES, lane = threadIdx.x % LANES;
    if (row >= rows) return;
    const float scale = scales[KV == INT8 ? row : 0];
    const uint2 word = ((const uint2*)x)[(long long)row * LANES + lane];
    float values[8];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
        const u32 bytes = pair < 2 ? word.x : word.y;
        const u32 wide = widen<KV>(pair % 2 ? bytes >> 16 : bytes & 0xffffu);
        values[2 * pair] = fp16_to_float((u16)(wide & 0xffffu)) * scale;
        values[2 * pair + 1] = fp16_to_float((u16)(wide >> 16)) * scale;
    }
    ((uint4*)out)[(long long)row * LANES + lane] = pack8<ACT>(values);
}
