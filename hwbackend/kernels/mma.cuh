// Tensor cores and asynchronous copies, one instruction a function (PTX ISA, sm_80 and later).
//
// Fragments of mma.m16n8k16, with g = lane / 4 and t = lane % 4; each register holds two 16-bit values:
//   A (16 x 16)  a[0]: row g,   k 2t, 2t+1      a[1]: row g+8, same k      a[2], a[3]: the same with k + 8
//   B (16 x 8)   b[0]: column g, k 2t, 2t+1     b[1]: k + 8
//   C (16 x 8)   c[0], c[1]: row g, columns 2t, 2t+1                       c[2], c[3]: row g+8
#pragma once
#include "common.cuh"

#ifdef __CUDACC__

/// c += a b, with bf16 or fp16 operands and float32 sums.
template <int DTYPE>
DEVICE void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1)
{
    if (DTYPE == BF16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
}

DEVICE u32 shared_address(const void* pointer)
{
    u64 address;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(pointer));
    return (u32)address;
}

/// Four 8 x 8 matrices of 16-bit values; lane i gives the address of row i % 8 of matrix i / 8.
/// Register m of a lane holds row g, columns 2t and 2t+1 of matrix m.
DEVICE void load_matrices(u32 (&r)[4], const void* row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/// The same, transposed: register m of a lane holds rows 2t and 2t+1 of column g of matrix m.
DEVICE void load_matrices_transposed(u32 (&r)[4], const void* row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/// 16 bytes from global to shared memory, on their way until awaited; zeros, and nothing read, where not `there`.
DEVICE void copy_async(void* shared, const void* global, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(shared)), "l"(global), "r"(there ? 16 : 0)
                 : "memory");
}

DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Wait until at most `PENDING` committed groups of this thread are on their way.
template <int PENDING>
DEVICE void await_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

#endif
