// Preparation of a layer's Kronecker factors for their inversion, and of the inverse for its use.

#include "common.cuh"

__device__ inline float mean_of_diagonal(const float* x, long long size) {
    float sum = 0.0f;
    for (long long i = threadIdx.x; i < size; i += blockDim.x) sum += x[i * size + i];
    return block_reduce(sum, Sum()) / static_cast<float>(size);
}

// A block per row of both matrices. Every block computes the damping from the diagonals, which is faster than another
// launch.
extern "C" __global__ void damp_factors(const float* a, const float* g, float* damped_a, float* damped_g, long long d,
                                        long long k, float damping) {
    const float mean_a = mean_of_diagonal(a, d), mean_g = mean_of_diagonal(g, k);
    const float pi = mean_a > 0.0f && mean_g > 0.0f ? sqrtf(mean_a / mean_g) : 1.0f;
    const float root = sqrtf(damping);
    for (long long i = blockIdx.x; i < d + k; i += gridDim.x) {
        const bool of_a = i < d;
        const long long size = of_a ? d : k, row = of_a ? i : i - d;
        const float* from = (of_a ? a : g) + row * size;
        float* to = (of_a ? damped_a : damped_g) + row * size;
        const float added = of_a ? pi * root : root / pi;
        for (long long j = threadIdx.x; j < size; j += blockDim.x) to[j] = j == row ? from[j] + added : from[j];
    }
}

extern "C" __global__ void begin_inverse(float* x, float* factor, long long size) {
    const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
    for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < size * size; i += step) {
        factor[i] = x[i];
        x[i] = i % (size + 1) == 0 ? 1.0f : 0.0f;
    }
}

extern "C" __global__ void end_inverse(const int* minor, float* x, int* info, long long size) {
    if (*minor == 0) return;
    const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
    const long long first = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (long long i = first; i < size * size; i += step) x[i] = nanf("");
    if (first == 0) *info = *minor;
}
