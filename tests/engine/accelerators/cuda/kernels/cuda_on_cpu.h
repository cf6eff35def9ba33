// Enough of CUDA for a C++20 compiler to run the kernels on a CPU: a plain loop over threads where a kernel has no
// barrier; where it has, a context of its own for each thread of a block, which gives way to the next at a barrier. Blocks
// run one after another.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
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

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

// -- the threads of a block -------------------------------------------------------------------------------------------

struct Barrier {
    unsigned expected, arrived = 0, phase = 0;
};

// Contexts of one CPU thread, not CPU threads: hundreds of those that wait for one another take minutes on a busy machine.
struct Block {
    static constexpr std::size_t STACK_BYTES = 128 << 10;

    struct Thread {
        dim3 index;
        ucontext_t context;
        std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
        bool ended = false;
    };

    explicit Block(unsigned count) : threads(count), all{count}, lanes(count) {
        for (unsigned begin = 0; begin < count; begin += 32) warps.push_back({count - begin < 32 ? count - begin : 32});
    }

    void wait(Barrier& barrier) {
        if (++barrier.arrived == barrier.expected) {
            barrier.arrived = 0, ++barrier.phase;
            return;
        }
        for (const unsigned phase = barrier.phase; barrier.phase == phase;) {
            swapcontext(&running->context, &scheduler);
        }
    }

    // Every thread up to its next barrier, in turns: first to last, then last to first, so that one that reads what another
    // writes without a barrier between them reads too early in one of the two.
    void run() {
        for (bool forward = true, left = true; left; forward = !forward) {
            left = false;
            for (std::size_t i = 0; i < threads.size(); ++i) {
                running = &threads[forward ? i : threads.size() - 1 - i];
                if (running->ended) continue;
                left = true;
                threadIdx = running->index;
                swapcontext(&scheduler, &running->context);
            }
        }
    }

    std::vector<Thread> threads;
    Thread* running = nullptr;
    ucontext_t scheduler;
    Barrier all;
    std::vector<Barrier> warps;
    std::vector<float> lanes;
    int any = 0;
};

inline Block* block = nullptr;

inline Block& in_block() {
    if (block == nullptr) {
        std::fputs("a kernel with barriers was run as a plain loop\n", stderr);
        std::abort();
    }
    return *block;
}

inline void __syncthreads() { in_block().wait(in_block().all); }

inline int __syncthreads_or(int predicate) {
    Block& b = in_block();
    if (predicate) b.any = 1;
    b.wait(b.all);
    const int result = b.any;
    b.wait(b.all);
    b.any = 0;
    b.wait(b.all);
    return result;
}

inline float __shfl_xor_sync(unsigned, float x, int mask) {
    Block& b = in_block();
    const unsigned thread = threadIdx.x + blockDim.x * threadIdx.y;
    Barrier& warp = b.warps[thread / 32];
    b.lanes[thread] = x;
    b.wait(warp);
    x = b.lanes[thread ^ static_cast<unsigned>(mask)];
    b.wait(warp);
    return x;
}

inline float atomicAdd(float* to, float x) {
    const float before = *to;
    *to += x;
    return before;
}

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

// -- launching --------------------------------------------------------------------------------------------------------

template <typename Visit>
inline void for_each_index(const dim3& extent, Visit visit) {
    for (unsigned z = 0; z < extent.z; ++z)
        for (unsigned y = 0; y < extent.y; ++y)
            for (unsigned x = 0; x < extent.x; ++x) visit(dim3{x, y, z});
}

struct Call {
    void (*run)(const void*);
    const void* kernel;
    const dim3* grid;
};
inline Call current;

// What a thread of a block with barriers does: its part of every block of the grid.
inline void run_thread() {
    for_each_index(*current.grid, [](dim3 b) {
        blockIdx = b;
        current.run(current.kernel);
        __syncthreads();
    });
    block->running->ended = true;
}

// No template: all this would be compiled anew for every kernel.
inline void run_grid(const dim3& grid, const dim3& threads, bool barriers, void (*run)(const void*), const void* kernel) {
    gridDim = grid, blockDim = threads;
    if (!barriers) {
        for_each_index(grid, [&](dim3 b) {
            blockIdx = b;
            for_each_index(threads, [&](dim3 t) {
                threadIdx = t;
                run(kernel);
            });
        });
        return;
    }
    Block shared(threads.x * threads.y * threads.z);
    block = &shared, current = {run, kernel, &grid};
    std::size_t next = 0;
    for_each_index(threads, [&](dim3 index) {
        Block::Thread& thread = shared.threads[next++];
        thread.index = index;
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.get();
        thread.context.uc_stack.ss_size = Block::STACK_BYTES;
        thread.context.uc_link = &shared.scheduler;
        makecontext(&thread.context, run_thread, 0);
    });
    shared.run();
    block = nullptr;
}

// `parameters`: the addresses of the arguments, as cuLaunchKernel takes them.
template <typename... A, std::size_t... I>
void launch(void (*kernel)(A...), const dim3& grid, const dim3& threads, bool barriers, void** parameters,
            std::index_sequence<I...>) {
    const auto call = [=] { kernel(*static_cast<A*>(parameters[I])...); };
    run_grid(grid, threads, barriers, [](const void* one) { (*static_cast<decltype(call)*>(one))(); }, &call);
}

template <typename... A>
void launch(void (*kernel)(A...), const dim3& grid, const dim3& threads, bool barriers, void** parameters) {
    launch(kernel, grid, threads, barriers, parameters, std::index_sequence_for<A...>{});
}
