// Rows of values to 8 bits. A row is one token's head; LANES lanes hold it, eight values each.
#pragma once
#include "common.cuh"

#define LANES (HEAD_DIM / 8)
#define NUM_THREADS 128

/// Eight values as bytes: in steps of `scale`, to nearest even.
DEVICE uint2 narrow(const float (&values)[8], float scale)
{
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f; // a row of zeros, or a NaN, which stays in the scale
    u32 words[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#if KV == INT8
        const float steps = fminf(fmaxf(rintf(values[i] * inverse), -127.0f), 127.0f);
        const u32 byte = (u32)(int)steps & 0xffu;
#else
        const u32 byte = float_to_e4m3(values[i] * inverse);
#endif
        words[i / 4] |= byte << (8 * (i % 4));
    }
    return make_uint2(words[0], words[1]);
}

/// int8: greatest magnitude of a row / 127; NaN where there is one. All lanes of the row take part.
DEVICE float scale_of_row(const float (&values)[8])
{
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float magnitude = fabsf(values[i]);
        largest = magnitude > largest || magnitude != magnitude ? magnitude : largest;
    }
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) {
        const float other = __shfl_xor_sync(FULL_WARP, largest, distance);
        largest = other > largest || other != other ? other : largest;
    }
    return largest / 127.0f;
}
