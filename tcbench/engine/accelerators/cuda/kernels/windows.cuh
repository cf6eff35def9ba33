// Shared by kernels that move a window over images: pooling, im2col. NHWC is 0 or 1.

#include "common.cuh"

struct Geometry {
    long long images, channels;
    int h, w, p, q, r, s, stride, pad;
};

__device__ inline Geometry geometry(long long n, long long c, long long h, long long w, long long p, long long q,
                                    long long r, long long s, long long stride, long long pad) {
    const auto narrow = [](long long x) { return static_cast<int>(x); };
    return {n,         c,         narrow(h), narrow(w),      narrow(p),
            narrow(q), narrow(r), narrow(s), narrow(stride), narrow(pad)};
}

// Visits every pixel of a batch of images with `rows` x `columns` pixels, N values at a time. NHWC: a block per row,
// threads over columns and channels. NCHW: a block per plane, threads over its pixels.
//
// visit(at image, row, column, first channel): the index of a pixel is image + (row * width + column) * step + channel.
template <int N, typename Visit>
__device__ inline void for_each_pixel(const Geometry& g, int height, int width, Visit visit) {
#if NHWC
    const int vectors = static_cast<int>(g.channels / N);
    for (long long line = blockIdx.x; line < g.images * height; line += gridDim.x) {
        const long long image = line / height;
        const int row = static_cast<int>(line - image * height);
        for (int i = threadIdx.x; i < width * vectors; i += blockDim.x) {
            const int column = i / vectors;
            visit(image, row, column, (i - column * vectors) * N);
        }
    }
#else
    for (long long plane = blockIdx.x; plane < g.images * g.channels; plane += gridDim.x) {
        for (int i = threadIdx.x; i < height * width; i += blockDim.x) {
            const int row = i / width;
            visit(plane, row, i - row * width, 0);
        }
    }
#endif
}

// Returns the index in its array of the value that for_each_pixel visits.
__device__ inline long long offset(const Geometry& g, int height, int width, long long image, int row, int column,
                                   int channel) {
    const long long pixel = (image * height + row) * width + column;
    return NHWC ? pixel * g.channels + channel : pixel;
}
