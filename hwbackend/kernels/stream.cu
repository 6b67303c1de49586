// Plain traffic to and from device memory, for bandwidth; an eviction of the L2; and nothing at all, for launches.
#include "common.cuh"

#define NUM_THREADS 256
#define UNROLL 4

/// The four words that a thread takes in one round lie a grid's width apart: each load of a warp is 512 bytes in a row.
#define FOR_WORDS(i, words)                                                                                  \
    const long long stride = (long long)gridDim.x * NUM_THREADS;                                            \
    for (long long i = (long long)blockIdx.x * NUM_THREADS + threadIdx.x; i < (words); i += UNROLL * stride)

/// grid: any; block: 256 threads; `words` of 16 bytes, as everywhere here.
extern "C" __global__ void __launch_bounds__(NUM_THREADS)
stream_copy(uint4* RESTRICT dst, const uint4* RESTRICT src, long long words)
{
    FOR_WORDS(i, words)
    {
        uint4 held[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; ++k)
            if (i + k * stride < words) held[k] = src[i + k * stride];
#pragma unroll
        for (int k = 0; k < UNROLL; ++k)
            if (i + k * stride < words) dst[i + k * stride] = held[k];
    }
}

/// The exclusive or of all that was read, a word for each block of threads, so that no read can be left out.
extern "C" __global__ void __launch_bounds__(NUM_THREADS)
stream_read(u32* RESTRICT digests, const uint4* RESTRICT src, long long words)
{
    __shared__ u32 parts[NUM_THREADS];
    u32 digest = 0;
    FOR_WORDS(i, words)
    {
        uint4 held[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; ++k)
            held[k] = i + k * stride < words ? src[i + k * stride] : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int k = 0; k < UNROLL; ++k) digest ^= held[k].x ^ held[k].y ^ held[k].z ^ held[k].w;
    }
    parts[threadIdx.x] = digest;
    __syncthreads();
    for (int width = NUM_THREADS / 2; width > 0; width /= 2) {
        if ((int)threadIdx.x < width) parts[threadIdx.x] ^= parts[threadIdx.x + width];
        __syncthreads();
    }
    if (threadIdx.x == 0) digests[blockIdx.x] = parts[0];
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS)
stream_write(uint4* RESTRICT dst, u32 value, long long words)
{
    FOR_WORDS(i, words)
    {
#pragma unroll
        for (int k = 0; k < UNROLL; ++k)
            if (i + k * stride < words) dst[i + k * stride] = make_uint4(value, value, value, value);
    }
}

/// Read and change every word of a buffer larger than the L2, so that it holds nothing else afterwards.
extern "C" __global__ void __launch_bounds__(NUM_THREADS) flush(uint4* buffer, long long words)
{
    const long long stride = (long long)gridDim.x * NUM_THREADS;
    for (long long i = (long long)blockIdx.x * NUM_THREADS + threadIdx.x; i < words; i += stride) {
        uint4 word = buffer[i];
        word.x += 1;
        buffer[i] = word;
    }
}

extern "C" __global__ void empty() {}
