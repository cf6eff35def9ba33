// Elementwise operations. DTYPE is half, bfloat16 or float. Work with any number of blocks, except unscale, which needs
// one per CHUNK values.

#include "common.cuh"

typedef DTYPE T;

template <typename Function>
__device__ inline void map(const T* a, T* out, long long size, Function function) {
    constexpr int N = WIDTH<T>;
    const long long vectors = aligned(a, out) ? size / N : 0;
    for (long long i = thread_index(); i < vectors; i += thread_count()) {
        float x[N];
        load(a + i * N, x);
#pragma unroll
        for (int k = 0; k < N; ++k) x[k] = function(x[k]);
        store(out + i * N, x);
    }
    for (long long i = vectors * N + thread_index(); i < size; i += thread_count()) {
        put(out[i], function(to_float(a[i])));
    }
}

template <typename Function>
__device__ inline void map(const T* a, const T* b, T* out, long long size, Function function) {
    constexpr int N = WIDTH<T>;
    const long long vectors = aligned(a, b, out) ? size / N : 0;
    for (long long i = thread_index(); i < vectors; i += thread_count()) {
        float x[N], y[N];
        load(a + i * N, x);
        load(b + i * N, y);
#pragma unroll
        for (int k = 0; k < N; ++k) x[k] = function(x[k], y[k]);
        store(out + i * N, x);
    }
    for (long long i = vectors * N + thread_index(); i < size; i += thread_count()) {
        put(out[i], function(to_float(a[i]), to_float(b[i])));
    }
}

extern "C" __global__ void relu_forward(const T* x, T* y, long long size) {
    map(x, y, size, [](float x) { return relu(x); });
}

extern "C" __global__ void relu_backward(const T* gy, const T* y, T* gx, long long size) {
    map(gy, y, gx, size, [](float gy, float y) { return y > 0.0f ? gy : 0.0f; });
}

extern "C" __global__ void add(const T* a, const T* b, T* c, long long size) {
    map(a, b, c, size, [](float a, float b) { return a + b; });
}

extern "C" __global__ void add_relu(const T* a, const T* b, T* y, long long size) {
    map(a, b, y, size, [](float a, float b) { return relu(a + b); });
}

// state: scale, overflows, ... Each block with a value that is not finite adds one to overflows.
extern "C" __global__ void unscale(const T* g, T* gx, float* state, long long size) {
    const float scale = state[0];
    bool overflow = false;
    const auto unscaled = [&](float g) {
        T rounded;
        put(rounded, g / scale);
        const bool finite = is_finite(to_float(rounded));
        overflow |= !finite;
        return finite ? to_float(rounded) : 0.0f;
    };
    const long long begin = blockIdx.x * static_cast<long long>(CHUNK);
    const long long count = size - begin < CHUNK ? size - begin : CHUNK;
    constexpr int N = WIDTH<T>;
    const long long vectors = aligned(g, gx) ? count / N : 0;
    for (long long i = threadIdx.x; i < vectors; i += blockDim.x) {
        float x[N];
        load(g + begin + i * N, x);
#pragma unroll
        for (int k = 0; k < N; ++k) x[k] = unscaled(x[k]);
        store(gx + begin + i * N, x);
    }
    for (long long i = vectors * N + threadIdx.x; i < count; i += blockDim.x) {
        put(gx[begin + i], unscaled(to_float(g[begin + i])));
    }
    if (__syncthreads_or(overflow) && threadIdx.x == 0) atomicAdd(&state[1], 1.0f);
}
