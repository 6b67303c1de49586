// Runs the CUDA sources of hwbackend/kernels on the host: the threads of a block are fibres of one thread, which meet
// at __syncthreads and at the instructions of a warp. What the PTX instructions do is written out from the PTX ISA.
//
// To bring faults to light: asynchronous copies poison their target until they are awaited; lanes of a warp that meet
// at different instructions are an error, so are a block whose threads all wait and a write behind the dynamic shared
// memory; and the order of the fibres is an option, by which warps go in step or each runs ahead as far as it can.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)
#define DEVICE static inline
#define RESTRICT
#define DYNAMIC_SHARED(type, name) type* name = reinterpret_cast<type*>(host::dynamic_shared.data())

struct dim3 {
    unsigned x, y, z;
};
struct uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

static dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace host {

constexpr int warp_size = 32, stack_bytes = 1 << 17, max_threads = 1024;

struct Copy {
    void* target;
    const void* source;
    bool there;
};

struct Barrier {
    unsigned arrived = 0, alive = 0, generation = 0;
    int operation = 0;
};

struct Fibre {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(stack_bytes);
    bool done = false;
    Barrier* waiting = nullptr;
    unsigned generation = 0;
    std::vector<Copy> copies;
    std::deque<std::vector<Copy>> groups;
};

static std::vector<uint4> dynamic_shared;
static std::vector<Fibre> fibres;
static std::vector<Barrier> warps;
static Barrier block;
static std::vector<char> exchanged; // [warp][2][lane][64]
static ucontext_t scheduler;
static int current;
static std::function<void()> body;
static const char* fault;

static void fail(const char* message)
{
    fault = message;
    fibres[current].done = true;
    swapcontext(&fibres[current].context, &scheduler);
}

static void release(Barrier& barrier)
{
    if (barrier.alive && barrier.arrived == barrier.alive) {
        barrier.arrived = 0;
        barrier.generation++;
    }
}

static void arrive(Barrier& barrier, int operation)
{
    if (barrier.arrived == 0) barrier.operation = operation;
    if (barrier.operation != operation) fail("threads meet at different instructions");
    Fibre& fibre = fibres[current];
    fibre.generation = barrier.generation;
    barrier.arrived++;
    release(barrier);
    if (barrier.generation == fibre.generation) {
        fibre.waiting = &barrier;
        swapcontext(&fibre.context, &scheduler);
    }
}

/// Show all lanes of the warp what each of them brings. Two buffers suffice: nobody is two meetings ahead.
template <class T>
static const T* exchange(const T& mine, int operation)
{
    static_assert(sizeof(T) <= 64, "room for a lane");
    const int warp = current / warp_size, lane = current % warp_size;
    char* buffer = exchanged.data() + (warp * 2 + (warps[warp].generation & 1)) * warp_size * 64;
    std::memcpy(buffer + lane * sizeof(T), &mine, sizeof(T));
    arrive(warps[warp], operation);
    return reinterpret_cast<const T*>(buffer);
}

static void entry()
{
    body();
    Fibre& fibre = fibres[current];
    fibre.done = true;
    block.alive--;
    release(block);
    Barrier& warp = warps[current / warp_size];
    warp.alive--;
    release(warp);
    swapcontext(&fibre.context, &scheduler);
}

/// Let each lane that need not wait run to its next meeting; false where all wait or are done.
static bool run_warp(int warp, int threads, bool falling, int& left)
{
    bool moved = false;
    for (int n = 0; n < warp_size && !fault; ++n) {
        const int i = warp * warp_size + (falling ? warp_size - 1 - n : n);
        if (i >= threads) continue;
        Fibre& fibre = fibres[i];
        if (fibre.done || (fibre.waiting && fibre.waiting->generation == fibre.generation)) continue;
        fibre.waiting = nullptr;
        moved = true;
        current = i;
        threadIdx = {unsigned(i) % blockDim.x, unsigned(i) / blockDim.x % blockDim.y,
                     unsigned(i) / blockDim.x / blockDim.y};
        swapcontext(&scheduler, &fibre.context);
        if (fibre.done) --left;
    }
    return moved && !fault;
}

static void run_block(int threads, int order)
{
    fibres.resize(threads);
    const int num_warps = (threads + warp_size - 1) / warp_size;
    warps.assign(num_warps, Barrier());
    exchanged.assign(num_warps * 2 * warp_size * 64, 0);
    block = Barrier();
    block.alive = threads;
    for (int i = 0; i < threads; ++i) {
        Fibre& fibre = fibres[i];
        warps[i / warp_size].alive++;
        fibre.done = false;
        fibre.waiting = nullptr;
        fibre.copies.clear();
        fibre.groups.clear();
        getcontext(&fibre.context);
        fibre.context.uc_stack.ss_sp = fibre.stack.data();
        fibre.context.uc_stack.ss_size = fibre.stack.size();
        fibre.context.uc_link = nullptr;
        makecontext(&fibre.context, entry, 0);
    }
    int left = threads;
    while (left > 0) {
        bool moved = false;
        for (int n = 0; n < num_warps; ++n) {
            const int warp = order == 2 ? num_warps - 1 - n : n;
            while (run_warp(warp, threads, order == 2, left)) {
                moved = true;
                if (order == 0) break;
            }
            if (fault) return;
        }
        if (!moved) {
            fault = "all threads of a block wait";
            return;
        }
    }
}

template <class... Args, std::size_t... I>
static void call(void (*kernel)(Args...), void** args, std::index_sequence<I...>)
{
    kernel(*static_cast<std::remove_cv_t<Args>*>(args[I])...);
}

/// Nothing was written behind the dynamic shared memory.
static bool shared_is_whole(unsigned bytes)
{
    const unsigned char* all = reinterpret_cast<const unsigned char*>(dynamic_shared.data());
    for (std::size_t i = bytes; i < dynamic_shared.size() * sizeof(uint4); ++i)
        if (all[i] != 0xff) return false;
    return true;
}

/// Grid and block are dims[0:3] and dims[3:6]. Returns what went wrong, or null.
template <class... Args>
static const char* launch(void (*kernel)(Args...), const unsigned* dims, unsigned shared_bytes, int order,
                          void** args, int num_args)
{
    if (num_args != int(sizeof...(Args))) return "wrong number of arguments";
    gridDim = {dims[0], dims[1], dims[2]};
    blockDim = {dims[3], dims[4], dims[5]};
    const int threads = dims[3] * dims[4] * dims[5];
    if (threads < 1 || threads > max_threads) return "a block of no, or more than 1024, threads";
    fault = nullptr;
    body = [=] { call(kernel, args, std::index_sequence_for<Args...>{}); };
    for (unsigned z = 0; z < gridDim.z; ++z)
        for (unsigned y = 0; y < gridDim.y; ++y)
            for (unsigned x = 0; x < gridDim.x; ++x) {
                blockIdx = {x, y, z};
                dynamic_shared.assign(shared_bytes / 16 + 64, uint4{~0u, ~0u, ~0u, ~0u});
                run_block(threads, order);
                if (!fault && !shared_is_whole(shared_bytes)) fault = "a write behind the dynamic shared memory";
                if (fault) return fault;
            }
    return nullptr;
}

static float bf16(unsigned bits)
{
    bits <<= 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

static float fp16(unsigned bits)
{
    const std::uint16_t half = std::uint16_t(bits);
    _Float16 value;
    std::memcpy(&value, &half, 2);
    return float(value);
}

static unsigned to_fp16(float value)
{
    const _Float16 half = _Float16(value);
    std::uint16_t bits;
    std::memcpy(&bits, &half, 2);
    return bits;
}

static unsigned to_bf16(float value)
{
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (value != value) return 0x7fff;
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

enum Operation { sync_threads, shuffle, mma_sync, load_matrix, load_matrix_transposed };

} // namespace host

static inline void __syncthreads() { host::arrive(host::block, host::sync_threads); }

template <class T>
static inline T __shfl_xor_sync(unsigned, T value, int mask)
{
    return host::exchange(value, host::shuffle)[(host::current % host::warp_size) ^ mask];
}

static inline float __uint_as_float(unsigned bits)
{
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

static inline unsigned __float_as_uint(float value)
{
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector)
{
    const std::uint64_t bytes = (std::uint64_t(high) << 32) | low;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= unsigned(bytes >> (8 * ((selector >> (4 * i)) & 7)) & 0xff) << (8 * i);
    return result;
}

static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
using std::fabs;

static inline float exp2_approx(float x)
{
    const float y = std::exp2(x);
    return y < 1.17549435e-38f ? 0.0f : y; // keeps a NaN
}

static inline unsigned pack_bf16(float low, float high) { return host::to_bf16(low) | host::to_bf16(high) << 16; }
static inline unsigned pack_fp16(float low, float high) { return host::to_fp16(low) | host::to_fp16(high) << 16; }
static inline float fp16_to_float(unsigned short bits) { return host::fp16(bits); }

static inline unsigned sub_fp16(unsigned a, unsigned b)
{
    return host::to_fp16(host::fp16(a & 0xffff) - host::fp16(b & 0xffff))
           | host::to_fp16(host::fp16(a >> 16) - host::fp16(b >> 16)) << 16;
}

static inline unsigned mul_fp16(unsigned a, unsigned b)
{
    return host::to_fp16(host::fp16(a & 0xffff) * host::fp16(b & 0xffff))
           | host::to_fp16(host::fp16(a >> 16) * host::fp16(b >> 16)) << 16;
}

template <class T>
static inline T load_aligned(const void* address)
{
    if (reinterpret_cast<std::uintptr_t>(address) % sizeof(T)) host::fail("a load that is not aligned");
    T value;
    std::memcpy(&value, address, sizeof(T));
    return value;
}

static inline uint4 load_streaming(const void* address) { return load_aligned<uint4>(address); }
static inline uint2 load_streaming_8(const void* address) { return load_aligned<uint2>(address); }

template <int DTYPE>
static inline void mma(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1)
{
    struct Fragments {
        unsigned a[4], b[2];
    };
    const Fragments* all = host::exchange(Fragments{{a0, a1, a2, a3}, {b0, b1}}, host::mma_sync);
    const int lane = host::current % host::warp_size, g = lane / 4, t = lane % 4;
    const auto value = [](unsigned word, int half) {
        const unsigned bits = half ? word >> 16 : word & 0xffff;
        return DTYPE == 0 ? host::bf16(bits) : host::fp16(bits);
    };
    for (int i = 0; i < 4; ++i) {
        const int row = i / 2, column = 2 * t + i % 2; // of the two halves of the rows
        for (int k = 0; k < 16; ++k) {
            const Fragments& of_row = all[g * 4 + k % 8 / 2];
            const Fragments& of_column = all[column * 4 + k % 8 / 2];
            c[i] += value(of_row.a[row + 2 * (k / 8)], k % 2) * value(of_column.b[k / 8], k % 2);
        }
    }
}

static inline void load_matrices_as(unsigned (&r)[4], const void* row, bool transposed)
{
    if (reinterpret_cast<std::uintptr_t>(row) % 16) host::fail("a matrix row that is not aligned");
    const void* const* rows =
        host::exchange(row, transposed ? host::load_matrix_transposed : host::load_matrix);
    const int lane = host::current % host::warp_size, g = lane / 4, t = lane % 4;
    for (int m = 0; m < 4; ++m) {
        unsigned short halves[2];
        for (int i = 0; i < 2; ++i) {
            const int from = transposed ? 2 * t + i : g, at = transposed ? g : 2 * t + i;
            std::memcpy(&halves[i], static_cast<const char*>(rows[8 * m + from]) + 2 * at, 2);
        }
        r[m] = halves[0] | unsigned(halves[1]) << 16;
    }
}

static inline void load_matrices(unsigned (&r)[4], const void* row) { load_matrices_as(r, row, false); }
static inline void load_matrices_transposed(unsigned (&r)[4], const void* row) { load_matrices_as(r, row, true); }

static inline void copy_async(void* shared, const void* global, bool there)
{
    if ((reinterpret_cast<std::uintptr_t>(shared) | reinterpret_cast<std::uintptr_t>(global)) % 16)
        host::fail("an asynchronous copy that is not aligned");
    std::memset(shared, 0xff, 16);
    host::fibres[host::current].copies.push_back({shared, global, there});
}

static inline void commit_copies()
{
    host::Fibre& fibre = host::fibres[host::current];
    fibre.groups.push_back(std::move(fibre.copies));
    fibre.copies.clear();
}

template <int PENDING>
static inline void await_copies()
{
    host::Fibre& fibre = host::fibres[host::current];
    while (int(fibre.groups.size()) > PENDING) {
        for (const host::Copy& copy : fibre.groups.front()) {
            if (copy.there)
                std::memcpy(copy.target, copy.source, 16);
            else
                std::memset(copy.target, 0, 16);
        }
        fibre.groups.pop_front();
    }
}
