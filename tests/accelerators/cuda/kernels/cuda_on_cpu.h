// Enough of CUDA for a C++20 compiler to run the kernels on a CPU: a plain loop over threads where a kernel has no
// barrier, one CPU thread for each CUDA thread of a block where it has. Blocks run one after another.
#pragma once

#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__ static

struct dim3 {
    unsigned x, y, z;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

inline thread_local dim3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

// -- what the threads of a block share --------------------------------------------------------------------------------

struct Block {
    explicit Block(unsigned threads) : all(threads), lanes(threads) {
        for (unsigned begin = 0; begin < threads; begin += 32) {
            warps.push_back(std::make_unique<std::barrier<>>(threads - begin < 32 ? threads - begin : 32));
        }
    }

    std::barrier<> all;
    std::vector<std::unique_ptr<std::barrier<>>> warps;
    std::vector<float> lanes;
    std::atomic<int> any{0};
};

inline Block* block = nullptr;

inline Block& in_block() {
    if (block == nullptr) {
        std::fputs("a kernel with barriers was run as a plain loop\n", stderr);
        std::abort();
    }
    return *block;
}

inline void __syncthreads() { in_block().all.arrive_and_wait(); }

inline int __syncthreads_or(int predicate) {
    Block& b = in_block();
    if (predicate) b.any = 1;
    b.all.arrive_and_wait();
    const int result = b.any;
    b.all.arrive_and_wait();
    b.any = 0;
    b.all.arrive_and_wait();
    return result;
}

inline float __shfl_xor_sync(unsigned, float x, int mask) {
    Block& b = in_block();
    const unsigned thread = threadIdx.x + blockDim.x * threadIdx.y;
    std::barrier<>& warp = *b.warps[thread / 32];
    b.lanes[thread] = x;
    warp.arrive_and_wait();
    x = b.lanes[thread ^ static_cast<unsigned>(mask)];
    warp.arrive_and_wait();
    return x;
}

inline float atomicAdd(float* to, float x) { return std::atomic_ref<float>(*to).fetch_add(x); }

inline float __int_as_float(int bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

// -- float16, bit by bit ----------------------------------------------------------------------------------------------

inline float half_bits_to_float(unsigned short half) {
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    float x;
    if (exponent == 31) {
        x = fraction ? __int_as_float(0x7fc00000) : __int_as_float(0x7f800000);
    } else if (exponent == 0) {
        x = std::ldexp(static_cast<float>(fraction), -24);
    } else {
        x = std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
    }
    return half & 0x8000 ? -x : x;
}

// To nearest, ties to even: std::nearbyint rounds the value in units of the last place of its float16.
inline unsigned short float_to_half_bits(float x) {
    const unsigned short sign = std::signbit(x) ? 0x8000 : 0;
    const float size = std::fabs(x);
    if (size != size) return static_cast<unsigned short>(sign | 0x7e00);
    if (size >= 65520.0f) return static_cast<unsigned short>(sign | 0x7c00);
    int exponent = -14;
    if (size >= std::ldexp(1.0f, -14)) exponent = std::ilogb(size);
    const int units = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));
    // units is 1024 to 2048 for a normal number, and a carry moves on to the next exponent by itself.
    return static_cast<unsigned short>(sign | (((exponent + 14) << 10) + units));
}

// The upper half of a float32, to nearest, ties to even: a carry moves on to the next exponent by itself.
inline unsigned short float_to_bfloat16_bits(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    if (x != x) return 0x7fff;
    return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

extern "C" void floats_to_bfloat16s(const float* from, unsigned short* to, long long count) {
    for (long long i = 0; i < count; ++i) to[i] = float_to_bfloat16_bits(from[i]);
}
extern "C" void halves_to_floats(const unsigned short* from, float* to, long long count) {
    for (long long i = 0; i < count; ++i) to[i] = half_bits_to_float(from[i]);
}
extern "C" void floats_to_halves(const float* from, unsigned short* to, long long count) {
    for (long long i = 0; i < count; ++i) to[i] = float_to_half_bits(from[i]);
}

// -- launching --------------------------------------------------------------------------------------------------------

template <typename Visit>
void for_each_index(const dim3& extent, Visit visit) {
    for (unsigned z = 0; z < extent.z; ++z)
        for (unsigned y = 0; y < extent.y; ++y)
            for (unsigned x = 0; x < extent.x; ++x) visit(dim3{x, y, z});
}

template <typename Run>
void run_grid(const dim3& grid, const dim3& threads, bool barriers, Run run) {
    gridDim = grid, blockDim = threads;
    if (!barriers) {
        for_each_index(grid, [&](dim3 b) {
            blockIdx = b;
            for_each_index(threads, [&](dim3 t) {
                threadIdx = t;
                run();
            });
        });
        return;
    }
    Block shared(threads.x * threads.y * threads.z);
    block = &shared;
    std::vector<std::thread> workers;
    for_each_index(threads, [&](dim3 t) {
        workers.emplace_back([&, t] {
            threadIdx = t;
            for_each_index(grid, [&](dim3 b) {
                blockIdx = b;
                run();
                shared.all.arrive_and_wait();
            });
        });
    });
    for (std::thread& worker : workers) worker.join();
    block = nullptr;
}

// `parameters`: the addresses of the arguments, as cuLaunchKernel takes them.
template <typename... A, std::size_t... I>
void launch(void (*kernel)(A...), const dim3& grid, const dim3& threads, bool barriers, void** parameters,
            std::index_sequence<I...>) {
    const std::tuple<A...> arguments{*static_cast<A*>(parameters[I])...};
    run_grid(grid, threads, barriers, [&] { std::apply(kernel, arguments); });
}

template <typename... A>
void launch(void (*kernel)(A...), const dim3& grid, const dim3& threads, bool barriers, void** parameters) {
    launch(kernel, grid, threads, barriers, parameters, std::index_sequence_for<A...>{});
}
