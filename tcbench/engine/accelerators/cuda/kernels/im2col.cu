// im2col lays out a convolution's input as a matrix to multiply by its filter; col2im sums it back. DTYPE is half,
// bfloat16 or float, NHWC 0 or 1: columns are (C, R, S, N, P, Q) or (N, P, Q, R, S, C).

#include "windows.cuh"

typedef DTYPE T;

#if !NHWC

// Returns where the columns of a plane (image * channels + channel) begin for a position in the filter.
__device__ inline long long row_of(const Geometry& g, long long plane, long long tap) {
    const long long image = plane / g.channels, channel = plane - image * g.channels;
    return ((channel * g.r * g.s + tap) * g.images + image) * g.p * g.q;
}

#endif

template <int N>
__device__ inline void to_columns(const Geometry& g, const T* x, T* columns) {
#if NHWC
    // The pixels under a row of the filter are adjacent in memory, like a single pixel with S * C channels.
    Geometry by_row = g;
    by_row.channels *= g.s;
    for_each_pixel<N>(by_row, g.p, g.q, [&](long long image, int row, int column, int place) {
        const int top = row * g.stride - g.pad, left = column * g.stride - g.pad;
        const int at = left + place / static_cast<int>(g.channels);
        T* to = columns + offset(by_row, g.p, g.q, image, row, column, 0) * g.r + place;
        for (int r = 0; r < g.r; ++r, to += by_row.channels) {
            Pack<T, N> value = {};
            if (0 <= at && at < g.w && 0 <= top + r && top + r < g.h) {
                value.load(x + offset(g, g.h, g.w, image, top + r, left, 0) + place);
            }
            value.store(to);
        }
    });
#else
    const long long step = g.images * g.p * g.q;
    for_each_pixel<N>(g, g.p, g.q, [&](long long plane, int row, int column, int) {
        const int top = row * g.stride - g.pad, left = column * g.stride - g.pad;
        T* to = columns + row_of(g, plane, 0) + row * g.q + column;
        for (int r = 0; r < g.r; ++r) {
            for (int s = 0; s < g.s; ++s, to += step) {
                const int y = top + r, at = left + s;
                const bool inside = 0 <= y && y < g.h && 0 <= at && at < g.w;
                *to = inside ? x[offset(g, g.h, g.w, plane, y, at, 0)] : T{};
            }
        }
    });
#endif
}

// Each pixel sums up all columns that contain it, so that no address is written twice.
template <int N>
__device__ inline void from_columns(const Geometry& g, const T* gcolumns, T* gx) {
    for_each_pixel<N>(g, g.h, g.w, [&](long long image, int row, int column, int channel) {
        const int bottom = row + g.pad, right = column + g.pad;
        const int first_p = bottom < g.r ? 0 : (bottom - g.r) / g.stride + 1;
        const int first_q = right < g.s ? 0 : (right - g.s) / g.stride + 1;
        float sum[N] = {};
        for (int p = first_p; p < g.p && p * g.stride <= bottom; ++p) {
            for (int q = first_q; q < g.q && q * g.stride <= right; ++q) {
                const int tap = (bottom - p * g.stride) * g.s + right - q * g.stride;
#if NHWC
                const long long at = offset(g, g.p, g.q, image, p, q, 0) * g.r * g.s + tap * g.channels + channel;
#else
                const long long at = row_of(g, image, tap) + p * g.q + q;
#endif
                float value[N];
                load(gcolumns + at, value);
#pragma unroll
                for (int k = 0; k < N; ++k) sum[k] += value[k];
            }
        }
        store(gx + offset(g, g.h, g.w, image, row, column, channel), sum);
    });
}

extern "C" __global__ void im2col(const T* x, T* columns, long long n, long long c, long long h, long long w, long long p,
                                  long long q, long long r, long long s, long long stride, long long pad) {
    const Geometry g = geometry(n, c, h, w, p, q, r, s, stride, pad);
#if NHWC
    constexpr int N = WIDTH<T>;
    if (c % N == 0 && aligned(x, columns)) return to_columns<N>(g, x, columns);
#endif
    to_columns<1>(g, x, columns);
}

extern "C" __global__ void col2im(const T* gcolumns, T* gx, long long n, long long c, long long h, long long w,
                                  long long p, long long q, long long r, long long s, long long stride, long long pad) {
    const Geometry g = geometry(n, c, h, w, p, q, r, s, stride, pad);
#if NHWC
    constexpr int N = WIDTH<T>;
    if (c % N == 0 && aligned(gcolumns, gx)) return from_columns<N>(g, gcolumns, gx);
#endif
    from_columns<1>(g, gcolumns, gx);
}
