// Averages over windows of one size, which may overlap. DTYPE is half, bfloat16 or float, NHWC 0 or 1.

#include "windows.cuh"

typedef DTYPE T;

template <int N>
__device__ inline void forward(const Geometry& g, const T* x, T* y) {
    const float pixels = static_cast<float>(g.r * g.r);
    for_each_pixel<N>(g, g.p, g.q, [&](long long image, int row, int column, int channel) {
        float sum[N] = {};
        for (int r = 0; r < g.r; ++r) {
            for (int s = 0; s < g.r; ++s) {
                float value[N];
                load(x + offset(g, g.h, g.w, image, row * g.stride + r, column * g.stride + s, channel), value);
#pragma unroll
                for (int k = 0; k < N; ++k) sum[k] += value[k];
            }
        }
#pragma unroll
        for (int k = 0; k < N; ++k) sum[k] /= pixels;
        store(y + offset(g, g.p, g.q, image, row, column, channel), sum);
    });
}

// Each pixel sums over all windows that contain it, so that no address is written twice.
template <int N>
__device__ inline void backward(const Geometry& g, const T* gy, T* gx) {
    const float pixels = static_cast<float>(g.r * g.r);
    const auto holds = [&](int window, int pixel) {
        return window * g.stride <= pixel && pixel < window * g.stride + g.r;
    };
    for_each_pixel<N>(g, g.h, g.w, [&](long long image, int row, int column, int channel) {
        float sum[N] = {};
        for (int p = 0; p < g.p; ++p) {
            for (int q = 0; q < g.q; ++q) {
                if (!holds(p, row) || !holds(q, column)) continue;
                float value[N];
                load(gy + offset(g, g.p, g.q, image, p, q, channel), value);
#pragma unroll
                for (int k = 0; k < N; ++k) sum[k] += value[k];
            }
        }
#pragma unroll
        for (int k = 0; k < N; ++k) sum[k] /= pixels;
        store(gx + offset(g, g.h, g.w, image, row, column, channel), sum);
    });
}

extern "C" __global__ void tiled_average_forward(const T* x, T* y, long long n, long long c, long long h, long long w,
                                                 long long p, long long q, long long ksize, long long stride) {
    const Geometry g = geometry(n, c, h, w, p, q, ksize, ksize, stride, 0);
#if NHWC
    constexpr int N = WIDTH<T>;
    if (c % N == 0 && aligned(x, y)) return forward<N>(g, x, y);
#endif
    forward<1>(g, x, y);
}

extern "C" __global__ void tiled_average_backward(const T* gy, T* gx, long long n, long long c, long long h,
                                                  long long w, long long p, long long q, long long ksize,
                                                  long long stride) {
    const Geometry g = geometry(n, c, h, w, p, q, ksize, ksize, stride, 0);
#if NHWC
    constexpr int N = WIDTH<T>;
    if (c % N == 0 && aligned(gy, gx)) return backward<N>(g, gy, gx);
#endif
    backward<1>(g, gy, gx);
}
