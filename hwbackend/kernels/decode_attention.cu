// Attention of one new token a sequence over its KV cache, paged or contiguous; the context is split over blocks of
// threads and the parts are merged (split-KV, "flash-decoding": Dao et al., 2023).
//
// Compile with
//   HEAD_DIM    64 or 128
//   ACT         BF16 or FP16: q and out
//   KV          the same as ACT, or INT8 or E4M3
//   ROWS        8 or 16: query heads of one KV head that a block of threads takes
//   BLOCK_SIZE  tokens in a KV block; 0: contiguous, each sequence has `table_stride` tokens to itself (16-bit KV only)
//
// The kernel is bound by the bytes of K and V, so they go from global memory straight into the fragments of the
// tensor cores, 16 bytes a load, and never through shared memory. That works because the order of head dimensions in
// q k^T, and of the columns in p v, is free: each lane takes those that lie together in memory (see `Tile`).
#include "mma.cuh"

#define NUM_WARPS 4
#define TILE 16 // tokens that a warp takes at once: the depth of an mma
#define WIDE (KV == BF16 || KV == FP16)
#define OPERAND (WIDE ? KV : FP16)
#define VALUE_BYTES (WIDE ? 2 : 1)
#define STEPS (HEAD_DIM / 16)
#define COLUMNS (HEAD_DIM / 8)
#define PIECES (HEAD_DIM * VALUE_BYTES / 64) // 16-byte loads of K that a lane makes for a token
#define V_WORDS (HEAD_DIM * VALUE_BYTES / 32) // 32-bit words of V that a lane holds of a token
// v of int8 is scaled through p, which is fp16: keep small scales away from its subnormal numbers.
#define P_SCALE (KV == INT8 ? 256.0f : 1.0f)

#if BLOCK_SIZE == 0 && !WIDE
#error "a contiguous cache is of 16-bit values"
#endif

struct Cache {
    const u8* RESTRICT keys;
    const u8* RESTRICT values;
    const float* RESTRICT k_scales; // int8: per block, head and token; e4m3: one
    const float* RESTRICT v_scales;
    const int* table;  // shared memory: blocks of this part of the sequence
    int first_block;   // of the table, in the sequence
    long long base;    // contiguous: first slot of the sequence
    int num_kv_heads;
    int kv_head;
};

DEVICE long long slot_of(const Cache& cache, int token)
{
#if BLOCK_SIZE > 0
    return (long long)cache.table[token / BLOCK_SIZE - cache.first_block] * BLOCK_SIZE + token % BLOCK_SIZE;
#else
    return cache.base + token;
#endif
}

DEVICE long long row_of(const Cache& cache, int token)
{
    return (slot_of(cache, token) * cache.num_kv_heads + cache.kv_head) * (HEAD_DIM * VALUE_BYTES);
}

#if KV == INT8
/// Scale of a token; scales lie [block, head, token of the block].
DEVICE float scale_of(const Cache& cache, const float* RESTRICT scales, int token)
{
    const long long block = cache.table[token / BLOCK_SIZE - cache.first_block];
    return scales[(block * cache.num_kv_heads + cache.kv_head) * BLOCK_SIZE + token % BLOCK_SIZE];
}
#endif

/// K and V of 16 tokens, as the lanes of a warp hold them.
///   keys[j]    token 8j + g: its head dimensions in pieces of 16 bytes, piece p at byte 64p + 16t
///   values[i]  token {2t, 2t+1, 2t+8, 2t+9}[i]: 16-bit, dimensions 64p + 8g...; 8-bit, HEAD_DIM/8 from g HEAD_DIM/8
struct Tile {
    u32 keys[2][PIECES * 4];
    u32 values[4][V_WORDS];
    float k_scales[4]; // of the tokens of the accumulator's columns, in the order of `values`
    float v_scales[4];
};

DEVICE int column_token(int i, int t) { return 2 * t + (i & 1) + (i >> 1) * 8; }

DEVICE void load_keys(Tile& tile, const Cache& cache, int first, int end, int g, int t)
{
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const int token = first + 8 * j + g;
        if (token < end) {
            const u8* row = cache.keys + row_of(cache, token) + 16 * t;
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
                const uint4 piece = load_streaming(row + 64 * p);
                tile.keys[j][4 * p] = piece.x;
                tile.keys[j][4 * p + 1] = piece.y;
                tile.keys[j][4 * p + 2] = piece.z;
                tile.keys[j][4 * p + 3] = piece.w;
            }
        } else {
#pragma unroll
            for (int w = 0; w < PIECES * 4; ++w) tile.keys[j][w] = 0;
        }
    }
#if KV == INT8
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int token = first + column_token(i, t);
        tile.k_scales[i] = token < end ? scale_of(cache, cache.k_scales, token) : 0.0f;
    }
#endif
}

DEVICE void load_values(Tile& tile, const Cache& cache, int first, int end, int g, int t)
{
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int token = first + column_token(i, t);
        if (token < end) {
            const u8* row = cache.values + row_of(cache, token);
#if V_WORDS == 2
            const uint2 piece = load_streaming_8(row + 8 * g);
            tile.values[i][0] = piece.x;
            tile.values[i][1] = piece.y;
#else
#pragma unroll
            for (int p = 0; p < V_WORDS / 4; ++p) {
                const uint4 piece = load_streaming(row + 128 * p + 16 * g);
                tile.values[i][4 * p] = piece.x;
                tile.values[i][4 * p + 1] = piece.y;
                tile.values[i][4 * p + 2] = piece.z;
                tile.values[i][4 * p + 3] = piece.w;
            }
#endif
        } else {
#pragma unroll
            for (int w = 0; w < V_WORDS; ++w) tile.values[i][w] = 0;
        }
#if KV == INT8
        tile.v_scales[i] = token < end ? scale_of(cache, cache.v_scales, token) : 0.0f;
#endif
    }
}

/// Head dimension of the first of the four values of q that step s of q k^T takes in a lane.
DEVICE int query_dimension(int s, int t)
{
    return WIDE ? (s / 2) * 32 + t * 8 + (s % 2) * 4 : (s / 4) * 64 + t * 16 + (s % 4) * 4;
}

/// Head dimension of column n of column tile j of p v.
DEVICE int value_dimension(int j, int n) { return WIDE ? (j / 8) * 64 + n * 8 + j % 8 : n * COLUMNS + j; }

/// The two registers of K for step s.
DEVICE void key_operand(const u32 (&keys)[PIECES * 4], int s, u32& b0, u32& b1)
{
#if WIDE
    b0 = keys[2 * s];
    b1 = keys[2 * s + 1];
#else
    b0 = widen<KV>(keys[s] & 0xffffu);
    b1 = widen<KV>(keys[s] >> 16);
#endif
}

/// Dimension j of two tokens, side by side.
DEVICE u32 value_operand(const u32 (&first)[V_WORDS], const u32 (&second)[V_WORDS], int j)
{
#if WIDE
    return __byte_perm(first[j / 2], second[j / 2], j % 2 ? 0x7632u : 0x5410u);
#else
    const u32 byte = j % 4;
    return widen<KV>(__byte_perm(first[j / 4], second[j / 4], byte | ((byte + 4) << 4)) & 0xffffu);
#endif
}

/// What a warp knows of its rows: greatest score, sum of weights, weighted sum of values (online softmax).
struct State {
    float largest[ROWS / 8];
    float sum[ROWS / 8];
    float out[COLUMNS][ROWS / 4];
};

DEVICE void scores_of(float (&scores)[2][4], const Tile& tile, const u32 (&q)[STEPS][ROWS / 4])
{
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) scores[j][c] = 0.0f;
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            u32 b0, b1;
            key_operand(tile.keys[j], s, b0, b1);
#if ROWS == 8
            mma<OPERAND>(scores[j], q[s][0], 0, q[s][1], 0, b0, b1);
#else
            mma<OPERAND>(scores[j], q[s][0], q[s][2], q[s][1], q[s][3], b0, b1);
#endif
        }
    }
}

/// Scores to weights, in place; `state` is brought to the new greatest score.
DEVICE void softmax_step(float (&scores)[2][4], State& state, const Tile& tile, float scale_log2, int left, int t)
{
#pragma unroll
    for (int r = 0; r < ROWS / 8; ++r) {
        float largest = state.largest[r];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float& score = scores[i >> 1][2 * r + (i & 1)];
            score *= scale_log2;
#if KV == INT8
            score *= tile.k_scales[i];
#endif
            if (column_token(i, t) >= left) score = minus_infinity();
            largest = fmaxf(largest, score);
        }
        largest = max_over_quad(largest);
        const float shrink = exp2_approx(state.largest[r] - largest);
        state.largest[r] = largest;
        state.sum[r] *= shrink;
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            state.out[j][2 * r] *= shrink;
            state.out[j][2 * r + 1] *= shrink;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float& score = scores[i >> 1][2 * r + (i & 1)];
            score = exp2_approx(score - largest);
            state.sum[r] += score;
#if KV == INT8
            score *= tile.v_scales[i] * P_SCALE;
#endif
        }
    }
}

DEVICE void add_values(State& state, const Tile& tile, const float (&weights)[2][4])
{
    const u32 a0 = pack<OPERAND>(weights[0][0], weights[0][1]);
    const u32 a2 = pack<OPERAND>(weights[1][0], weights[1][1]);
#if ROWS == 16
    const u32 a1 = pack<OPERAND>(weights[0][2], weights[0][3]);
    const u32 a3 = pack<OPERAND>(weights[1][2], weights[1][3]);
#endif
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
        const u32 b0 = value_operand(tile.values[0], tile.values[1], j);
        const u32 b1 = value_operand(tile.values[2], tile.values[3], j);
#if ROWS == 8
        float c[4] = {state.out[j][0], state.out[j][1], 0.0f, 0.0f};
        mma<OPERAND>(c, a0, 0, a2, 0, b0, b1);
        state.out[j][0] = c[0];
        state.out[j][1] = c[1];
#else
        mma<OPERAND>(state.out[j], a0, a1, a2, a3, b0, b1);
#endif
    }
}

/// The four values of q of one row that a lane needs for step s, scaled for e4m3 keys by `k_scale`.
DEVICE void load_query(const u16* RESTRICT row, bool there, int d, float k_scale, u32& low, u32& high)
{
    if (!there) {
        low = high = 0;
        return;
    }
    const uint2 bits = *(const uint2*)(row + d);
#if WIDE
    low = bits.x;
    high = bits.y;
#else
    low = pack_fp16(to_float<ACT>((u16)(bits.x & 0xffffu)) * k_scale, to_float<ACT>((u16)(bits.x >> 16)) * k_scale);
    high = pack_fp16(to_float<ACT>((u16)(bits.y & 0xffffu)) * k_scale, to_float<ACT>((u16)(bits.y >> 16)) * k_scale);
#endif
}

/// grid: (num_splits, num_kv_heads x tiles of ROWS query heads, batch); block: 128 threads;
/// dynamic shared memory: 4 bytes for each KV block that a split may touch.
/// With one split the result goes to `out` [batch, num_heads, HEAD_DIM]; with more, the weighted sums go to `part_out`
/// [batch, num_heads, num_splits, HEAD_DIM] and (greatest score, sum of weights) to `part_stats` [..., 2].
extern "C" __global__ void __launch_bounds__(NUM_WARPS* WARP, 2)
decode_attention(u16* RESTRICT out, float* RESTRICT part_out, float* RESTRICT part_stats, const u16* RESTRICT q,
                 const u8* RESTRICT keys, const u8* RESTRICT values, const float* RESTRICT k_scales,
                 const float* RESTRICT v_scales, const int* RESTRICT block_tables, const int* RESTRICT context_lens,
                 int num_heads, int num_kv_heads, int q_stride, int table_stride, int split_tokens, int window,
                 float scale_log2)
{
    DYNAMIC_SHARED(int, table);
    __shared__ float merged_out[NUM_WARPS][ROWS][HEAD_DIM];
    __shared__ float merged_stats[NUM_WARPS][ROWS][2];

    const int split = blockIdx.x, num_splits = gridDim.x, sequence = blockIdx.z;
    const int kv_head = blockIdx.y % num_kv_heads;
    const int group = num_heads / num_kv_heads;
    const int first_row = blockIdx.y / num_kv_heads * ROWS; // in the group
    const int rows = min(ROWS, group - first_row);
    const int head = kv_head * group + first_row;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;

    const int context_len = context_lens[sequence];
    const int oldest = window > 0 ? max(0, context_len - window) : 0;
    const int begin = oldest + split * split_tokens;
    const int end = min(context_len, begin + split_tokens);
    if (begin >= end) { // nothing here; a sequence of no tokens attends to nothing and gets zeros
        if (num_splits == 1) {
            for (int i = threadIdx.x; i < rows * HEAD_DIM; i += NUM_WARPS * WARP)
                out[((long long)sequence * num_heads + head) * HEAD_DIM + i] = 0;
        }
        return;
    }

    Cache cache;
    cache.keys = keys;
    cache.values = values;
    cache.k_scales = k_scales;
    cache.v_scales = v_scales;
    cache.table = table;
    cache.num_kv_heads = num_kv_heads;
    cache.kv_head = kv_head;
    cache.base = (long long)sequence * table_stride;
    cache.first_block = 0;
#if BLOCK_SIZE > 0
    cache.first_block = begin / BLOCK_SIZE;
    const int blocks = (end - 1) / BLOCK_SIZE - cache.first_block + 1;
    for (int i = threadIdx.x; i < blocks; i += NUM_WARPS * WARP)
        table[i] = block_tables[(long long)sequence * table_stride + cache.first_block + i];
    __syncthreads();
#endif

    u32 q_fragments[STEPS][ROWS / 4];
    const float k_scale = KV == E4M3 ? k_scales[0] : 1.0f;
    const u16* query = q + (long long)sequence * q_stride + (long long)head * HEAD_DIM;
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
#pragma unroll
        for (int r = 0; r < ROWS / 8; ++r) {
            const int row = g + 8 * r;
            load_query(query + row * HEAD_DIM, row < rows, query_dimension(s, t), k_scale, q_fragments[s][2 * r],
                       q_fragments[s][2 * r + 1]);
        }
    }

    State state;
#pragma unroll
    for (int r = 0; r < ROWS / 8; ++r) {
        state.largest[r] = minus_infinity();
        state.sum[r] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
        for (int c = 0; c < ROWS / 4; ++c) state.out[j][c] = 0.0f;
    }

    // The next keys are asked for as soon as these are used, the next values likewise: loads are always on their way.
    Tile tile;
    int first = begin + warp * TILE;
    if (first < end) {
        load_keys(tile, cache, first, end, g, t);
        load_values(tile, cache, first, end, g, t);
    }
    for (; first < end; first += NUM_WARPS * TILE) {
        const int next = first + NUM_WARPS * TILE;
        float scores[2][4];
        scores_of(scores, tile, q_fragments);
        softmax_step(scores, state, tile, scale_log2, end - first, t);
        if (next < end) load_keys(tile, cache, next, end, g, t);
        add_values(state, tile, scores);
        if (next < end) load_values(tile, cache, next, end, g, t);
    }

#pragma unroll
    for (int r = 0; r < ROWS / 8; ++r) {
        const float sum = sum_over_quad(state.sum[r]);
        const int row = g + 8 * r;
        if (t == 0) {
            merged_stats[warp][row][0] = state.largest[r];
            merged_stats[warp][row][1] = sum;
        }
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            merged_out[warp][row][value_dimension(j, 2 * t)] = state.out[j][2 * r];
            merged_out[warp][row][value_dimension(j, 2 * t + 1)] = state.out[j][2 * r + 1];
        }
    }
    __syncthreads();

    const float v_scale = KV == E4M3 ? v_scales[0] : 1.0f / P_SCALE;
    for (int i = threadIdx.x; i < rows * HEAD_DIM; i += NUM_WARPS * WARP) {
        const int row = i / HEAD_DIM, d = i % HEAD_DIM;
        float largest = merged_stats[0][row][0];
#pragma unroll
        for (int w = 1; w < NUM_WARPS; ++w) largest = fmaxf(largest, merged_stats[w][row][0]);
        float sum = 0.0f, weighted = 0.0f;
#pragma unroll
        for (int w = 0; w < NUM_WARPS; ++w) {
            const float shrink = exp2_approx(merged_stats[w][row][0] - largest);
            sum += shrink * merged_stats[w][row][1];
            weighted += shrink * merged_out[w][row][d];
        }
        weighted *= v_scale;
        const long long at = (long long)sequence * num_heads + head + row;
        if (num_splits == 1) {
            out[at * HEAD_DIM + d] = (u16)pack<ACT>(weighted / sum, 0.0f);
        } else {
            part_out[(at * num_splits + split) * HEAD_DIM + d] = weighted;
            if (d == 0) {
                part_stats[(at * num_splits + split) * 2] = largest;
                part_stats[(at * num_splits + split) * 2 + 1] = sum;
            }
        }
    }
}

/// grid: (num_heads, batch); block: HEAD_DIM threads. Merges the parts of `decode_attention`.
extern "C" __global__ void __launch_bounds__(HEAD_DIM)
merge_splits(u16* RESTRICT out, const float* RESTRICT part_out, const float* RESTRICT part_stats,
             const int* RESTRICT context_lens, int num_splits, int split_tokens, int window)
{
    const int head = blockIdx.x, num_heads = gridDim.x, sequence = blockIdx.y, d = threadIdx.x;
    const int tokens = window > 0 ? min(context_lens[sequence], window) : context_lens[sequence];
    const int used = (tokens + split_tokens - 1) / split_tokens;
    const long long at = (long long)sequence * num_heads + head;
    float largest = minus_infinity(), sum = 0.0f, weighted = 0.0f;
    for (int s = 0; s < used; ++s) largest = fmaxf(largest, part_stats[(at * num_splits + s) * 2]);
    for (int s = 0; s < used; ++s) {
        const float shrink = exp2_approx(part_stats[(at * num_splits + s) * 2] - largest);
        sum += shrink * part_stats[(at * num_splits + s) * 2 + 1];
        weighted += shrink * part_out[(at * num_splits + s) * HEAD_DIM + d];
    }
    out[at * HEAD_DIM + d] = used > 0 ? (u16)pack<ACT>(weighted / sum, 0.0f) : (u16)0;
}
