// The weight update of all parameters in one launch: a block per row of the chunk table.
//
// table (P, 2): addresses of a parameter's gradient and of its 16-bit weights, 0 for a float32 parameter.
// DTYPE is the type of 16-bit weights, half or bfloat16. Gradients have their parameter's type, or GRADIENT if defined.
// chunks (B, 4): parameter, first and end value in it, index of the first in the flat arrays.
// state (4,): the loss scale, overflows, good steps, skipped steps.

#include "common.cuh"

typedef DTYPE T;
#ifdef GRADIENT
typedef GRADIENT OfHalf;
typedef GRADIENT OfSingle;
#else
typedef T OfHalf;
typedef float OfSingle;
#endif

constexpr int N = 8;  // values per thread and iteration
constexpr int SCALE = 0, OVERFLOWS = 1, GOOD_STEPS = 2, SKIPPED = 3;

struct Rule {
    float scale, learning_rate, momentum, weight_decay;

    // Returns whether the gradient is finite. If it is not, v and w keep their values.
    __device__ bool apply(float gradient, float& v, float& w) const {
        float g = gradient / scale;
        if (!is_finite(g)) return false;
        g += weight_decay * w;
        v = momentum * v - learning_rate * g;
        w += v;
        return true;
    }
};

template <typename Gradient>
__device__ inline bool update(const Rule& rule, const Gradient* gradient, T* weights, float* master, float* velocity,
                              long long count) {
    bool finite = true;
    // A null pointer counts as aligned.
    const long long vectors = aligned(gradient, weights, master, velocity) ? count / N : 0;
    for (long long i = threadIdx.x; i < vectors; i += blockDim.x) {
        float g[N], v[N], w[N];
        load(gradient + i * N, g);
        load(velocity + i * N, v);
        load(master + i * N, w);
#pragma unroll
        for (int k = 0; k < N; ++k) finite &= rule.apply(g[k], v[k], w[k]);
        store(velocity + i * N, v);
        store(master + i * N, w);
        if (weights) store(weights + i * N, w);
    }
    for (long long i = vectors * N + threadIdx.x; i < count; i += blockDim.x) {
        float v = velocity[i], w = master[i];
        finite &= rule.apply(to_float(gradient[i]), v, w);
        velocity[i] = v;
        master[i] = w;
        if (weights) put(weights[i], w);
    }
    return finite;
}

extern "C" __global__ void batched_update(const long long* table, const long long* chunks, float* master,
                                          float* velocity, float* state, float learning_rate, float momentum,
                                          float weight_decay, long long dynamic) {
    if (dynamic && state[OVERFLOWS] > 0.0f) return;
    const long long* chunk = chunks + 4 * static_cast<long long>(blockIdx.x);
    const long long parameter = chunk[0], begin = chunk[1], count = chunk[2] - begin, place = chunk[3];
    const long long gradient = table[2 * parameter];
    T* weights = reinterpret_cast<T*>(table[2 * parameter + 1]);
    const Rule rule = {state[SCALE], learning_rate, momentum, weight_decay};
    const bool finite =
        weights ? update(rule, reinterpret_cast<const OfHalf*>(gradient) + begin, weights + begin, master + place,
                         velocity + place, count)
                : update(rule, reinterpret_cast<const OfSingle*>(gradient) + begin, static_cast<T*>(nullptr),
                         master + place, velocity + place, count);
    if (dynamic) return;
    if (__syncthreads_or(!finite) && threadIdx.x == 0) atomicAdd(&state[OVERFLOWS], 1.0f);
}

template <typename Gradient>
__device__ inline bool all_finite(const Gradient* gradient, long long count) {
    bool finite = true;
    const long long vectors = aligned(gradient) ? count / N : 0;
    for (long long i = threadIdx.x; i < vectors; i += blockDim.x) {
        float g[N];
        load(gradient + i * N, g);
#pragma unroll
        for (int k = 0; k < N; ++k) finite &= is_finite(g[k]);
    }
    for (long long i = vectors * N + threadIdx.x; i < count; i += blockDim.x) {
        finite &= is_finite(to_float(gradient[i]));
    }
    return finite;
}

extern "C" __global__ void check_finite(const long long* table, const long long* chunks, float* state) {
    const long long* chunk = chunks + 4 * static_cast<long long>(blockIdx.x);
    const long long parameter = chunk[0], begin = chunk[1], count = chunk[2] - begin;
    const long long gradient = table[2 * parameter];
    const bool finite = table[2 * parameter + 1]
                            ? all_finite(reinterpret_cast<const OfHalf*>(gradient) + begin, count)
                            : all_finite(reinterpret_cast<const OfSingle*>(gradient) + begin, count);
    if (__syncthreads_or(!finite) && threadIdx.x == 0) atomicAdd(&state[OVERFLOWS], 1.0f);
}

// Launch with one thread.
extern "C" __global__ void adjust_scale(float* state, long long interval) {
    if (state[OVERFLOWS] > 0.0f) {
        state[SCALE] = fmaxf(state[SCALE] * 0.5f, 1.0f);
        state[SKIPPED] += 1.0f;
        state[GOOD_STEPS] = 0.0f;
    } else {
        state[GOOD_STEPS] += 1.0f;
        if (state[GOOD_STEPS] >= static_cast<float>(interval)) {
            state[SCALE] = fminf(state[SCALE] * 2.0f, 16777216.0f);
            state[GOOD_STEPS] = 0.0f;
        }
    }
    state[OVERFLOWS] = 0.0f;
}
