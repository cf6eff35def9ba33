// Max pooling and global average pooling. DTYPE is half, bfloat16 or float, NHWC 0 or 1.

#include "windows.cuh"

typedef DTYPE T;

typedef unsigned char Place;

template <int N>
__device__ inline void max_forward(const Geometry& g, const T* x, T* y, Place* place) {
    for_each_pixel<N>(g, g.p, g.q, [&](long long image, int row, int column, int channel) {
        const int top = row * g.stride - g.pad, left = column * g.stride - g.pad;
        const int first_r = top < 0 ? -top : 0, end_r = g.h - top < g.r ? g.h - top : g.r;
        const int first_s = left < 0 ? -left : 0, end_s = g.w - left < g.s ? g.w - left : g.s;
        float best[N];
        Pack<Place, N> where;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            best[k] = -infinity();
            where.values[k] = static_cast<Place>(first_r * g.s + first_s);
        }
        for (int r = first_r; r < end_r; ++r) {
            for (int s = first_s; s < end_s; ++s) {
                float value[N];
                load(x + offset(g, g.h, g.w, image, top + r, left + s, channel), value);
#pragma unroll
                for (int k = 0; k < N; ++k) {
                    const bool first_nan = value[k] != value[k] && best[k] == best[k];
                    if (value[k] > best[k] || first_nan) {
                        best[k] = value[k];
                        where.values[k] = static_cast<Place>(r * g.s + s);
                    }
                }
            }
        }
        const long long at = offset(g, g.p, g.q, image, row, column, channel);
        store(y + at, best);
        where.store(place + at);
    });
}

// Each pixel sums over all windows that contain it, so that no address is written twice.
template <int N>
__device__ inline void max_backward(const Geometry& g, const T* gy, const Place* place, T* gx) {
    for_each_pixel<N>(g, g.h, g.w, [&](long long image, int row, int column, int channel) {
        const int bottom = row + g.pad, right = column + g.pad;
        const int first_p = bottom < g.r ? 0 : (bottom - g.r) / g.stride + 1;
        const int first_q = right < g.s ? 0 : (right - g.s) / g.stride + 1;
        float sum[N] = {};
        for (int p = first_p; p < g.p && p * g.stride <= bottom; ++p) {
            for (int q = first_q; q < g.q && q * g.stride <= right; ++q) {
                const long long at = offset(g, g.p, g.q, image, p, q, channel);
                const Place here = static_cast<Place>((bottom - p * g.stride) * g.s + right - q * g.stride);
                Pack<Place, N> where;
                float value[N];
                where.load(place + at);
                load(gy + at, value);
#pragma unroll
                for (int k = 0; k < N; ++k) {
                    if (where.values[k] == here) sum[k] += value[k];
                }
            }
        }
        store(gx + offset(g, g.h, g.w, image, row, column, channel), sum);
    });
}

extern "C" __global__ void max_pool_forward(const T* x, T* y, Place* place, long long n, long long c, long long h,
                                            long long w, long long p, long long q, long long ksize, long long stride,
                                            long long pad) {
    const Geometry g = geometry(n, c, h, w, p, q, ksize, ksize, stride, pad);
#if NHWC
    constexpr int N = WIDTH<T>;
    if (c % N == 0 && aligned(x, y, place)) return max_forward<N>(g, x, y, place);
#endif
    max_forward<1>(g, x, y, place);
}

extern "C" __global__ void max_pool_backward(const T* gy, const Place* place, T* gx, long long n, long long c,
                                             long long h, long long w, long long p, long long q, long long ksize,
                                             long long stride, long long pad) {
    const Geometry g = geometry(n, c, h, w, p, q, ksize, ksize, stride, pad);
#if NHWC
    constexpr int N = WIDTH<T>;
    if (c % N == 0 && aligned(gy, place, gx)) return max_backward<N>(g, gy, place, gx);
#endif
    max_backward<1>(g, gy, place, gx);
}

#if NHWC

// A thread per N channels of an image.
template <int N>
__device__ inline void average_forward(const T* x, T* y, long long n, long long c, long long pixels) {
    const long long vectors = c / N;
    for (long long i = thread_index(); i < n * vectors; i += thread_count()) {
        const long long image = i / vectors, channel = (i - image * vectors) * N;
        const T* at = x + image * pixels * c + channel;
        float sum[N] = {};
#pragma unroll 7
        for (long long pixel = 0; pixel < pixels; ++pixel) {
            float value[N];
            load(at + pixel * c, value);
#pragma unroll
            for (int k = 0; k < N; ++k) sum[k] += value[k];
        }
#pragma unroll
        for (int k = 0; k < N; ++k) sum[k] /= static_cast<float>(pixels);
        store(y + image * c + channel, sum);
    }
}

// A block per pixel.
template <int N>
__device__ inline void average_backward(const T* gy, T* gx, long long n, long long c, long long pixels) {
    for (long long pixel = blockIdx.x; pixel < n * pixels; pixel += gridDim.x) {
        for (long long channel = threadIdx.x * N; channel < c; channel += blockDim.x * N) {
            float value[N];
            load(gy + pixel / pixels * c + channel, value);
#pragma unroll
            for (int k = 0; k < N; ++k) value[k] /= static_cast<float>(pixels);
            store(gx + pixel * c + channel, value);
        }
    }
}

extern "C" __global__ void global_average_forward(const T* x, T* y, long long n, long long c, long long pixels) {
    constexpr int N = WIDTH<T>;
    if (c % N == 0 && aligned(x, y)) return average_forward<N>(x, y, n, c, pixels);
    average_forward<1>(x, y, n, c, pixels);
}

extern "C" __global__ void global_average_backward(const T* gy, T* gx, long long n, long long c, long long pixels) {
    constexpr int N = WIDTH<T>;
    if (c % N == 0 && aligned(gy, gx)) return average_backward<N>(gy, gx, n, c, pixels);
    average_backward<1>(gy, gx, n, c, pixels);
}

#else

// A warp per plane (n, c).
extern "C" __global__ void global_average_forward(const T* x, T* y, long long n, long long c, long long pixels) {
    const int lane = threadIdx.x % 32;
    for (long long plane = thread_index() / 32; plane < n * c; plane += thread_count() / 32) {
        float sum = 0.0f;
        for (long long pixel = lane; pixel < pixels; pixel += 32) sum += to_float(x[plane * pixels + pixel]);
        sum = warp_reduce(sum, Sum());
        if (lane == 0) put(y[plane], sum / static_cast<float>(pixels));
    }
}

extern "C" __global__ void global_average_backward(const T* gy, T* gx, long long n, long long c, long long pixels) {
    const int lane = threadIdx.x % 32;
    for (long long plane = thread_index() / 32; plane < n * c; plane += thread_count() / 32) {
        const float value = to_float(gy[plane]) / static_cast<float>(pixels);
        for (long long pixel = lane; pixel < pixels; pixel += 32) put(gx[plane * pixels + pixel], value);
    }
}

#endif
