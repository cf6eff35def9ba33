// The weight update with a launch per parameter and operation, as in the talk's baseline.

#include "common.cuh"

extern "C" __global__ void weight_decay(float* g, const float* w, long long size, float rate) {
    constexpr int N = 4;
    const long long vectors = aligned(g, w) ? size / N : 0;
    for (long long i = thread_index(); i < vectors; i += thread_count()) {
        float gradient[N], weights[N];
        load(g + i * N, gradient);
        load(w + i * N, weights);
#pragma unroll
        for (int k = 0; k < N; ++k) gradient[k] += rate * weights[k];
        store(g + i * N, gradient);
    }
    for (long long i = vectors * N + thread_index(); i < size; i += thread_count()) g[i] += rate * w[i];
}

extern "C" __global__ void momentum_update(const float* g, float* v, float* w, long long size, float learning_rate,
                                           float momentum) {
    constexpr int N = 4;
    const long long vectors = aligned(g, v, w) ? size / N : 0;
    for (long long i = thread_index(); i < vectors; i += thread_count()) {
        float gradient[N], velocity[N], weights[N];
        load(g + i * N, gradient);
        load(v + i * N, velocity);
        load(w + i * N, weights);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            velocity[k] = momentum * velocity[k] - learning_rate * gradient[k];
            weights[k] += velocity[k];
        }
        store(v + i * N, velocity);
        store(w + i * N, weights);
    }
    for (long long i = vectors * N + thread_index(); i < size; i += thread_count()) {
        v[i] = momentum * v[i] - learning_rate * g[i];
        w[i] += v[i];
    }
}
