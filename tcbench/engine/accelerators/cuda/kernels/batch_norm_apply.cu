// y = [relu](scale * x + bias [+ residual]). DTYPE is half, bfloat16 or float; NHWC, ADD and RELU are 0 or 1.

#include "common.cuh"

typedef DTYPE T;

template <int N>
__device__ inline void normalise(const T* x, const T* residual, const float (&scale)[N], const float (&bias)[N], T* y,
                                 long long at) {
    float value[N];
    load(x + at, value);
#pragma unroll
    for (int k = 0; k < N; ++k) value[k] = scale[k] * value[k] + bias[k];
#if ADD
    float other[N];
    load(residual + at, other);
#pragma unroll
    for (int k = 0; k < N; ++k) value[k] += other[k];
#endif
#if RELU
#pragma unroll
    for (int k = 0; k < N; ++k) value[k] = relu(value[k]);
#endif
    store(y + at, value);
}

#if NHWC
// threadIdx.x selects N channels and keeps their factors in registers; threadIdx.y and blockIdx.x select pixels.
template <int N>
__device__ inline void apply(const T* x, const T* residual, const float* scale, const float* bias, T* y, long long size,
                             long long channels, long long) {
    const long long pixels = size / channels;
    const long long first = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
    const long long step = static_cast<long long>(gridDim.x) * blockDim.y;
    for (long long c = threadIdx.x * N; c < channels; c += blockDim.x * N) {
        float s[N], b[N];
        load(scale + c, s);
        load(bias + c, b);
        for (long long pixel = first; pixel < pixels; pixel += step) {
            normalise(x, residual, s, b, y, pixel * channels + c);
        }
    }
}
#else
// threadIdx.x selects pixels of a plane; threadIdx.y and blockIdx.x select planes (n, c).
template <int N>
__device__ inline void apply(const T* x, const T* residual, const float* scale, const float* bias, T* y, long long size,
                             long long channels, long long pixels) {
    const long long planes = size / pixels;
    const long long first = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
    const long long step = static_cast<long long>(gridDim.x) * blockDim.y;
    for (long long plane = first; plane < planes; plane += step) {
        float s[N], b[N];
#pragma unroll
        for (int k = 0; k < N; ++k) s[k] = scale[plane % channels], b[k] = bias[plane % channels];
        for (long long pixel = threadIdx.x * N; pixel < pixels; pixel += blockDim.x * N) {
            normalise(x, residual, s, b, y, plane * pixels + pixel);
        }
    }
}
#endif

extern "C" __global__ void batch_norm_apply(const T* x,
#if ADD
                                            const T* residual,
#endif
                                            const float* scale, const float* bias, T* y, long long size,
                                            long long channels, long long pixels) {
#if !ADD
    const T* residual = nullptr;
#endif
    constexpr int N = WIDTH<T>;
#if NHWC
    const bool whole = channels % N == 0;
#else
    const bool whole = pixels % N == 0;
#endif
    if (whole && aligned(x, residual, scale, bias, y)) {
        apply<N>(x, residual, scale, bias, y, size, channels, pixels);
    } else {
        apply<1>(x, residual, scale, bias, y, size, channels, pixels);
    }
}
