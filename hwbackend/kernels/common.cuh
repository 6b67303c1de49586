// What all kernels share: storage types, conversions, loads.
//
// The sources include no header of the toolkit, so NVRTC needs no include path, and nvcc, NVRTC and (for tests)
// a host compiler all read the same text. Values are kept as bits: 16-bit floats as `u16`, 8-bit ones as `u8`.
// Where __CUDACC__ is not defined, whoever includes this brings the functions of the branch below himself.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define BF16 0
#define FP16 1
#define INT8 2
#define E4M3 3

#define WARP 32
#define FULL_WARP 0xffffffffu

#ifdef __CUDACC__

#define DEVICE __device__ __forceinline__
#define DYNAMIC_SHARED(type, name) extern __shared__ __align__(16) type name[]
#define RESTRICT __restrict__

/// 2^x, to 2 ulp; results below the smallest normal number are zero.
DEVICE float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// Two floats as bf16, round to nearest even; `low` in the low half.
DEVICE u32 pack_bf16(float low, float high)
{
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/// Two floats as fp16, round to nearest even; `low` in the low half.
DEVICE u32 pack_fp16(float low, float high)
{
    u32 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

DEVICE float fp16_to_float(u16 bits)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

/// Halves of `a` minus those of `b`, as fp16.
DEVICE u32 sub_fp16(u32 a, u32 b)
{
    u32 difference;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
    return difference;
}

/// Halves of `a` times those of `b`, as fp16.
DEVICE u32 mul_fp16(u32 a, u32 b)
{
    u32 product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

/// 16 bytes that are read once: past the L1.
DEVICE uint4 load_streaming(const void* address)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
    return v;
}

/// 8 bytes that are read once: past the L1.
DEVICE uint2 load_streaming_8(const void* address)
{
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(address));
    return v;
}

#endif

DEVICE float minus_infinity() { return __uint_as_float(0xff800000u); }

DEVICE float bf16_to_float(u16 bits) { return __uint_as_float((u32)bits << 16); }

template <int DTYPE>
DEVICE float to_float(u16 bits)
{
    return DTYPE == BF16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

template <int DTYPE>
DEVICE u32 pack(float low, float high)
{
    return DTYPE == BF16 ? pack_bf16(low, high) : pack_fp16(low, high);
}

/// Eight 16-bit values of a 16-byte word.
template <int DTYPE>
DEVICE void unpack8(uint4 word, float (&values)[8])
{
    const u32 words[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        values[2 * i] = to_float<DTYPE>((u16)(words[i] & 0xffffu));
        values[2 * i + 1] = to_float<DTYPE>((u16)(words[i] >> 16));
    }
}

template <int DTYPE>
DEVICE uint4 pack8(const float (&values)[8])
{
    return make_uint4(pack<DTYPE>(values[0], values[1]), pack<DTYPE>(values[2], values[3]),
                      pack<DTYPE>(values[4], values[5]), pack<DTYPE>(values[6], values[7]));
}

/// A float as e4m3 (OCP 8-bit float: bias 7, no infinity, 0x7f is NaN), round to nearest even, saturating at 448.
DEVICE u8 float_to_e4m3(float x)
{
    const u32 bits = __float_as_uint(x);
    const u32 sign = (bits >> 24) & 0x80u;
    const float magnitude = fabsf(x);
    if (magnitude != magnitude) return (u8)(sign | 0x7fu);
    if (magnitude >= 448.0f) return (u8)(sign | 0x7eu);
    // Below 2^-6 the step is 2^-9; eight steps carry into the smallest normal number by themselves.
    if (magnitude < 0.015625f) return (u8)(sign | (u32)rintf(magnitude * 512.0f));
    u32 rounded = __float_as_uint(magnitude);
    rounded += 0x7ffffu + ((rounded >> 20) & 1u);
    return (u8)(sign | ((rounded >> 20) - (120u << 3)));
}

/// Two e4m3 (low byte first) as fp16, exact.
DEVICE u32 e4m3_to_fp16(u32 pair)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    u32 halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((u16)pair));
    return halves;
#else
    // The exponent and mantissa of e4m3, shifted to those of fp16, are the value times 2^-8 (bias 15 for 7).
    const u32 spread = __byte_perm(pair, 0u, 0x1404u);
    const u32 small = (spread & 0x80008000u) | ((spread & 0x7f007f00u) >> 1);
    u32 halves = mul_fp16(small, 0x5c005c00u);
    if ((pair & 0x7fu) == 0x7fu) halves |= 0x7fffu;
    if ((pair & 0x7f00u) == 0x7f00u) halves |= 0x7fff0000u;
    return halves;
#endif
}

/// Two int8 (low byte first) as fp16, exact: 0x6400 | byte is 1024 + byte.
DEVICE u32 int8_to_fp16(u32 pair)
{
    return sub_fp16(__byte_perm(pair ^ 0x8080u, 0x64u, 0x4140u), 0x64806480u);
}

/// Two 8-bit KV values (low byte first) as fp16.
template <int KV_DTYPE>
DEVICE u32 widen(u32 pair)
{
    return KV_DTYPE == INT8 ? int8_to_fp16(pair) : e4m3_to_fp16(pair);
}

/// Largest value over the four lanes that share a row of an mma accumulator.
DEVICE float max_over_quad(float x)
{
    x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));
}

/// Sum over the four lanes that share a row of an mma accumulator.
DEVICE float sum_over_quad(float x)
{
    x += __shfl_xor_sync(FULL_WARP, x, 1);
    return x + __shfl_xor_sync(FULL_WARP, x, 2);
}


DEVICE float sum_over_warp(float x)
{
    for (int lane = 16; lane > 0; lane >>= 1) x += __shfl_xor_sync(FULL_WARP, x, lane);
    return x;
}
