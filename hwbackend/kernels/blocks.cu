// Whole KV blocks from place to place: copy-on-write, gathering for a transfer, scattering after one.
#include "common.cuh"

#define NUM_THREADS 256

/// dst[plane, dst_ids[i]] = src[plane, src_ids[i]] for two planes (keys, values); no ids: block i itself.
/// Blocks are `block_words` 16-byte words; planes are so many blocks apart.
/// grid: (num_blocks, 2, parts of a block); block: 256 threads.
extern "C" __global__ void __launch_bounds__(NUM_THREADS)
move_blocks(uint4* RESTRICT dst, const uint4* RESTRICT src, const int* RESTRICT dst_ids, const int* RESTRICT src_ids,
            int dst_plane_blocks, int src_plane_blocks, int block_words)
{
    const long long to = dst_ids ? dst_ids[blockIdx.x] : (int)blockIdx.x;
    const long long from = src_ids ? src_ids[blockIdx.x] : (int)blockIdx.x;
    uint4* target = dst + ((long long)blockIdx.y * dst_plane_blocks + to) * block_words;
    const uint4* source = src + ((long long)blockIdx.y * src_plane_blocks + from) * block_words;
    for (int i = blockIdx.z * NUM_THREADS + threadIdx.x; i < block_words; i += gridDim.z * NUM_THREADS)
        target[i] = source[i];
}
