// New tokens' keys and values into their slots of the KV cache.
//
// Compile with
//   HEAD_DIM    64 or 128
//   ACT         BF16 or FP16: values that come in
//   KV          the same as ACT, or INT8 or E4M3
//   BLOCK_SIZE  tokens in a KV block
#include "narrow.cuh"

#define WIDE (KV == BF16 || KV == FP16)

/// k and v of new tokens into their slots; a negative slot takes nothing.
/// grid: blocks of 128 threads for 2 x num_tokens x num_kv_heads rows.
/// k, v: [num_tokens, num_kv_heads, HEAD_DIM], tokens `k_stride` and `v_stride` apart.
extern "C" __global__ void __launch_bounds__(NUM_THREADS)
append_kv(u8* RESTRICT keys, u8* RESTRICT values, float* RESTRICT k_scales, float* RESTRICT v_scales,
          const u16* RESTRICT k, const u16* RESTRICT v, const int* RESTRICT slots, int num_tokens, int num_kv_heads,
          int k_stride, int v_stride)
{
    const int rows = 2 * num_tokens * num_kv_heads;
    const int wanted = blockIdx.x * (NUM_THREADS / LANES) + threadIdx.x / LANES;
    const int row = min(wanted, rows - 1); // lanes beyond the end stay for the exchange, and write nothing
    const int lane = threadIdx.x % LANES;
    const int head = row % num_kv_heads, token = row / num_kv_heads % num_tokens;
    const bool is_value = row >= num_tokens * num_kv_heads;
    const u16* source = is_value ? v + (long long)token * v_stride : k + (long long)token * k_stride;
    const uint4 word = ((const uint4*)(source + (long long)head * HEAD_DIM))[lane];
    const int slot = slots[token];
    const bool writes = wanted < rows && slot >= 0;
    const long long target = ((long long)slot * num_kv_heads + head) * LANES + lane;
    u8* data = is_value ? values : keys;
#if WIDE
    if (writes) ((uint4*)data)[target] = word;
#else
    float* scales = is_value ? v_scales : k_scales;
    float row_values[8];
    unpack8<ACT>(word, row_values);
#if KV == INT8
    const float scale = scale_of_row(row_values);
    if (writes && lane == 0)
        scales[((long long)(slot / BLOCK_SIZE) * num_kv_heads + head) * BLOCK_SIZE + slot % BLOCK_SIZE] = scale;
#else
    const float scale = scales[0];
#endif
    const uint2 narrowed = narrow(row_values, scale);
    if (writes) ((uint2*)data)[target] = narrowed;
#endif
}
