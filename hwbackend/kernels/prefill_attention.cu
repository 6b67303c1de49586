// Causal attention of a chunk of one sequence's tokens over its paged KV cache, which already holds the chunk's own
// keys and values behind those of earlier chunks. Online softmax over tiles of keys on tensor cores
// ("FlashAttention-2": Dao, 2023).
//
// Compile with
//   HEAD_DIM    64 or 128
//   ACT         BF16 or FP16: q and out
//   KV          the same as ACT, or INT8 or E4M3
//   BLOCK_SIZE  tokens in a KV block
//
// A block of threads takes 64 queries of one head, each of its four warps 16 of them. Tiles of 64 keys and values are
// double-buffered in shared memory: the next one is on its way while this one is used. Rows there are swizzled by
// 16-byte chunks, so that neither the copies in nor the matrix loads out meet a bank twice.
#include "mma.cuh"

#define NUM_WARPS 4
#define NUM_THREADS (NUM_WARPS * WARP)
#define QUERIES (NUM_WARPS * 16)
#define KEYS 64
#define WIDE (KV == BF16 || KV == FP16)
#define STEPS (HEAD_DIM / 16)
#define COLUMNS (HEAD_DIM / 8)
#define CHUNKS (HEAD_DIM / 8) // 16-byte chunks of a row in shared memory
#define TILE_VALUES (KEYS * HEAD_DIM)

DEVICE int swizzled(int row, int chunk) { return row * HEAD_DIM + (chunk ^ (row & 7)) * 8; }

struct Source {
    const u8* RESTRICT data;
    const float* RESTRICT scales;
    const int* RESTRICT table;
    int num_kv_heads;
    int kv_head;
};

/// Bring tokens [first, first + KEYS) to shared memory as 16-bit values of dtype ACT; zeros outside [begin, end).
DEVICE void load_tile(u16* tile, const Source& source, int first, int begin, int end)
{
#if WIDE
#pragma unroll
    for (int i = threadIdx.x; i < KEYS * CHUNKS; i += NUM_THREADS) {
        const int row = i / CHUNKS, chunk = i % CHUNKS, token = first + row;
        const bool there = token >= begin && token < end;
        const long long block = there ? source.table[token / BLOCK_SIZE] : 0;
        const long long slot = block * BLOCK_SIZE + token % BLOCK_SIZE;
        const long long at = (slot * source.num_kv_heads + source.kv_head) * HEAD_DIM + chunk * 8;
        copy_async(tile + swizzled(row, chunk), (const u16*)source.data + (there ? at : 0), there);
    }
#else
    // 16 bytes are two chunks; they are widened and scaled on the way.
#pragma unroll
    for (int i = threadIdx.x; i < KEYS * CHUNKS / 2; i += NUM_THREADS) {
        const int row = i / (CHUNKS / 2), chunk = i % (CHUNKS / 2) * 2, token = first + row;
        uint4 halves[2] = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
        if (token >= begin && token < end) {
            const long long block = source.table[token / BLOCK_SIZE];
            const long long slot = block * BLOCK_SIZE + token % BLOCK_SIZE;
            const long long at = (slot * source.num_kv_heads + source.kv_head) * HEAD_DIM + chunk * 8;
            const uint4 bytes = *(const uint4*)(source.data + at);
            const float scale =
                KV == INT8 ? source.scales[(block * source.num_kv_heads + source.kv_head) * BLOCK_SIZE + token % BLOCK_SIZE]
                           : source.scales[0];
            const u32 words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float values[8];
#pragma unroll
                for (int pair = 0; pair < 4; ++pair) {
                    const u32 word = words[2 * half + pair / 2];
                    const u32 wide = widen<KV>(pair % 2 ? word >> 16 : word & 0xffffu);
                    values[2 * pair] = fp16_to_float((u16)(wide & 0xffffu)) * scale;
                    values[2 * pair + 1] = fp16_to_float((u16)(wide >> 16)) * scale;
                }
                halves[half] = pack8<ACT>(values);
            }
        }
        *(uint4*)(tile + swizzled(row, chunk)) = halves[0];
        *(uint4*)(tile + swizzled(row, chunk + 1)) = halves[1];
    }
#endif
}

/// grid: (tiles of 64 queries, num_heads); block: 128 threads; dynamic shared memory: 8 KEYS HEAD_DIM bytes.
/// q and out: [num_tokens, num_heads, HEAD_DIM], rows of q `q_stride` apart; token i stands at context_len + i.
extern "C" __global__ void __launch_bounds__(NUM_THREADS, 2)
prefill_attention(u16* RESTRICT out, const u16* RESTRICT q, const u8* RESTRICT keys, const u8* RESTRICT values,
                  const float* RESTRICT k_scales, const float* RESTRICT v_scales, const int* RESTRICT block_table,
                  int num_tokens, int context_len, int num_heads, int num_kv_heads, int q_stride, int window,
                  float scale_log2)
{
    DYNAMIC_SHARED(u16, shared); // keys of two tiles, then values of two tiles

    // The last queries attend to the most keys: they start first, so that no long block is left for the end.
    const int first_query = (gridDim.x - 1 - blockIdx.x) * QUERIES;
    const int head = blockIdx.y;
    const int kv_head = head / (num_heads / num_kv_heads);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int warp_query = first_query + warp * 16;
    const int end = context_len + min(first_query + QUERIES, num_tokens);
    const int oldest = window > 0 ? max(0, context_len + first_query - window + 1) : 0;

    const Source key_source = {keys, k_scales, block_table, num_kv_heads, kv_head};
    const Source value_source = {values, v_scales, block_table, num_kv_heads, kv_head};

    u32 q_fragments[STEPS][4];
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = warp_query + g + (i & 1) * 8, d = 16 * s + 2 * t + (i >> 1) * 8;
            const u16* at = q + (long long)row * q_stride + (long long)head * HEAD_DIM + d;
            q_fragments[s][i] = row < num_tokens ? *(const u32*)at : 0u;
        }
    }

    float accumulated[COLUMNS][4];
    float largest[2] = {minus_infinity(), minus_infinity()};
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) accumulated[j][c] = 0.0f;
    }

    int first_key = oldest / KEYS * KEYS;
    load_tile(shared, key_source, first_key, oldest, end);
    load_tile(shared + 2 * TILE_VALUES, value_source, first_key, oldest, end);
    commit_copies();

    for (int stage = 0; first_key < end; first_key += KEYS, stage ^= 1) {
        const u16* key_tile = shared + stage * TILE_VALUES;
        const u16* value_tile = shared + (2 + stage) * TILE_VALUES;
        if (first_key + KEYS < end) {
            load_tile(shared + (stage ^ 1) * TILE_VALUES, key_source, first_key + KEYS, oldest, end);
            load_tile(shared + (2 + (stage ^ 1)) * TILE_VALUES, value_source, first_key + KEYS, oldest, end);
        }
        commit_copies(); // an empty group at the end keeps the count
        await_copies<1>();
        __syncthreads();

        float scores[KEYS / 8][4];
#pragma unroll
        for (int j = 0; j < KEYS / 8; ++j) {
#pragma unroll
            for (int c = 0; c < 4; ++c) scores[j][c] = 0.0f;
        }
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
#pragma unroll
            for (int j = 0; j < KEYS / 8; j += 2) {
                u32 b[4];
                load_matrices(b, key_tile + swizzled((j + (lane >> 4)) * 8 + (lane & 7), 2 * s + ((lane >> 3) & 1)));
                mma<ACT>(scores[j], q_fragments[s][0], q_fragments[s][1], q_fragments[s][2], q_fragments[s][3], b[0],
                         b[1]);
                mma<ACT>(scores[j + 1], q_fragments[s][0], q_fragments[s][1], q_fragments[s][2], q_fragments[s][3],
                         b[2], b[3]);
            }
        }

        // Mask only where the diagonal or the window's edge may cross this warp's part of the tile.
        const int position = context_len + warp_query + g;
        if (first_key + KEYS - 1 > context_len + warp_query
            || (window > 0 && first_key <= context_len + warp_query + 15 - window)) {
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j) {
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    const int key = first_key + 8 * j + 2 * t + (c & 1), query = position + (c >> 1) * 8;
                    if (key > query || (window > 0 && key <= query - window)) scores[j][c] = minus_infinity();
                }
            }
        }

#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float top = largest[r];
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j) top = fmaxf(top, fmaxf(scores[j][2 * r], scores[j][2 * r + 1]));
            top = max_over_quad(top);
            // A row that has seen no key yet keeps zeros: 2^(-inf - 0), not 2^(-inf + inf).
            const float base = top == minus_infinity() ? 0.0f : top * scale_log2;
            const float shrink = exp2_approx(largest[r] * scale_log2 - base);
            largest[r] = top;
            sum[r] *= shrink;
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                accumulated[j][2 * r] *= shrink;
                accumulated[j][2 * r + 1] *= shrink;
            }
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j) {
#pragma unroll
                for (int c = 2 * r; c < 2 * r + 2; ++c) {
                    scores[j][c] = exp2_approx(scores[j][c] * scale_log2 - base);
                    sum[r] += scores[j][c];
                }
            }
        }

#pragma unroll
        for (int s = 0; s < KEYS / 16; ++s) {
            const u32 a0 = pack<ACT>(scores[2 * s][0], scores[2 * s][1]);
            const u32 a1 = pack<ACT>(scores[2 * s][2], scores[2 * s][3]);
            const u32 a2 = pack<ACT>(scores[2 * s + 1][0], scores[2 * s + 1][1]);
            const u32 a3 = pack<ACT>(scores[2 * s + 1][2], scores[2 * s + 1][3]);
#pragma unroll
            for (int j = 0; j < COLUMNS; j += 2) {
                u32 b[4];
                load_matrices_transposed(
                    b, value_tile + swizzled(16 * s + ((lane >> 3) & 1) * 8 + (lane & 7), j + (lane >> 4)));
                mma<ACT>(accumulated[j], a0, a1, a2, a3, b[0], b[1]);
                mma<ACT>(accumulated[j + 1], a0, a1, a2, a3, b[2], b[3]);
            }
        }
        __syncthreads(); // before the next but one tile comes into this stage
    }

#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float inverse = 1.0f / sum_over_quad(sum[r]);
        const int row = warp_query + g + 8 * r;
        if (row < num_tokens) {
            u16* at = out + ((long long)row * num_heads + head) * HEAD_DIM + 2 * t;
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j)
                *(u32*)(at + 8 * j) = pack<ACT>(accumulated[j][2 * r] * inverse, accumulated[j][2 * r + 1] * inverse);
        }
    }
}
