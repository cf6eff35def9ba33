// Converts between 16 bits and float32. DTYPE is half or bfloat16.

#include "common.cuh"

typedef DTYPE T;

template <typename From, typename To>
__device__ inline void convert(const From* x, To* y, long long size) {
    constexpr int N = 8;
    const long long vectors = aligned(x, y) ? size / N : 0;
    for (long long i = thread_index(); i < vectors; i += thread_count()) {
        float values[N];
        load(x + i * N, values);
        store(y + i * N, values);
    }
    for (long long i = vectors * N + thread_index(); i < size; i += thread_count()) put(y[i], to_float(x[i]));
}

extern "C" __global__ void to_single(const T* x, float* y, long long size) { convert(x, y, size); }

extern "C" __global__ void to_half(const float* x, T* y, long long size) { convert(x, y, size); }
