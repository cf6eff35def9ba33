// Local response normalisation across channels. DTYPE is half, bfloat16 or float, NHWC 0 or 1. Works with any
// number of blocks: a thread per value, whose neighbours are in the caches.

#include "common.cuh"

typedef DTYPE T;

// visit(index of the value, index of its first neighbour, index of its last neighbour, stride between channels).
template <typename Visit>
__device__ inline void for_each_value(long long n, long long c, long long pixels, long long size, Visit visit) {
    const long long step = NHWC ? 1 : pixels, half = size / 2;
    for (long long i = thread_index(); i < n * c * pixels; i += thread_count()) {
        const long long channel = i / step % c;
        const long long before = channel < half ? channel : half, after = c - 1 - channel;
        visit(i, i - before * step, i + (after < half ? after : half) * step, step);
    }
}

extern "C" __global__ void lrn_forward(const T* x, T* y, float* sums, long long n, long long c, long long pixels,
                                       long long size, float alpha, float beta, float k) {
    for_each_value(n, c, pixels, size, [&](long long i, long long first, long long last, long long step) {
        float sum = 0.0f;
        for (long long j = first; j <= last; j += step) sum += to_float(x[j]) * to_float(x[j]);
        sum = k + alpha * sum;
        put(y[i], to_float(x[i]) * powf(sum, -beta));
        sums[i] = sum;
    });
}

extern "C" __global__ void lrn_backward(const T* gy, const T* x, const float* sums, T* gx, long long n, long long c,
                                        long long pixels, long long size, float alpha, float beta, float k) {
    for_each_value(n, c, pixels, size, [&](long long i, long long first, long long last, long long step) {
        float across = 0.0f;
        for (long long j = first; j <= last; j += step) {
            across += to_float(gy[j]) * to_float(x[j]) * powf(sums[j], -beta - 1.0f);
        }
        put(gx[i], to_float(gy[i]) * powf(sums[i], -beta) - 2.0f * alpha * beta * to_float(x[i]) * across);
    });
}
