// Copies matrices to and from columns of a wider matrix. DTYPE is half, bfloat16 or float. Works with any
// number of blocks.

#include "common.cuh"

typedef DTYPE T;

template <int N>
__device__ inline void copy(const T* from, long long from_step, T* to, long long to_step, long long rows,
                            long long width) {
    const long long vectors = width / N;
    for (long long i = thread_index(); i < rows * vectors; i += thread_count()) {
        const long long row = i / vectors, column = (i - row * vectors) * N;
        Pack<T, N> values;
        values.load(from + row * from_step + column);
        values.store(to + row * to_step + column);
    }
}

__device__ inline void any_copy(const T* from, long long from_step, T* to, long long to_step, long long rows,
                                long long width) {
    constexpr int N = WIDTH<T>;
    const bool wide = width % N == 0 && from_step % N == 0 && to_step % N == 0 && aligned(from, to);
    if (wide) return copy<N>(from, from_step, to, to_step, rows, width);
    copy<1>(from, from_step, to, to_step, rows, width);
}

extern "C" __global__ void put_columns(const T* x, T* y, long long rows, long long width, long long total,
                                       long long first) {
    any_copy(x, width, y + first, total, rows, width);
}

extern "C" __global__ void take_columns(const T* gy, T* gx, long long rows, long long width, long long total,
                                        long long first) {
    any_copy(gy + first, total, gx, width, rows, width);
}
