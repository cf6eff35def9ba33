// Packs the gradients of all parameters into one array, in one launch: a block per row of the chunk table.
//
// table (P, 2): addresses of a parameter's gradient and of its 16-bit weights, 0 for a float32 parameter.
// DTYPE is the array's type; HALF that of a 16-bit parameter's gradient, half or bfloat16.
// chunks (B, 4): parameter, first and end value in it, index of the first in the array.

#include "common.cuh"

typedef DTYPE T;

constexpr int N = 8;  // values per thread and iteration

template <typename Gradient>
__device__ inline void pack(const Gradient* gradient, T* flat, long long count, float factor) {
    const long long vectors = aligned(gradient, flat) ? count / N : 0;
    for (long long i = threadIdx.x; i < vectors; i += blockDim.x) {
        float g[N];
        load(gradient + i * N, g);
#pragma unroll
        for (int k = 0; k < N; ++k) g[k] *= factor;
        store(flat + i * N, g);
    }
    for (long long i = vectors * N + threadIdx.x; i < count; i += blockDim.x) {
        put(flat[i], to_float(gradient[i]) * factor);
    }
}

extern "C" __global__ void pack_gradients(const long long* table, const long long* chunks, T* flat, float factor) {
    const long long* chunk = chunks + 4 * static_cast<long long>(blockIdx.x);
    const long long parameter = chunk[0], begin = chunk[1], count = chunk[2] - begin, place = chunk[3];
    const long long gradient = table[2 * parameter];
    if (table[2 * parameter + 1]) {
        pack(reinterpret_cast<const HALF*>(gradient) + begin, flat + place, count, factor);
    } else {
        pack(reinterpret_cast<const float*>(gradient) + begin, flat + place, count, factor);
    }
}
