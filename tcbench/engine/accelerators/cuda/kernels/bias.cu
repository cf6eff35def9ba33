// Adds biases to matrices or feature maps, with or without ReLU, and computes their gradient. DTYPE is half,
// bfloat16 or float.

#include "common.cuh"

typedef DTYPE T;

// y is (n, k, pixels). N adjacent values share a channel in feature maps; in a matrix each has its own.
template <int N, bool RELU>
__device__ inline void biased(T* y, const float* b, long long n, long long k, long long pixels) {
    const long long vectors = n * k * pixels / N;
    for (long long i = thread_index(); i < vectors; i += thread_count()) {
        const long long channel = i * N / pixels % k;
        const int step = pixels == 1;
        float x[N];
        load(y + i * N, x);
#pragma unroll
        for (int j = 0; j < N; ++j) {
            x[j] += b[channel + j * step];
            if (RELU) x[j] = relu(x[j]);
        }
        store(y + i * N, x);
    }
}

template <bool RELU>
__device__ inline void any_biased(T* y, const float* b, long long n, long long k, long long pixels) {
    constexpr int N = WIDTH<T>;
    if ((pixels == 1 ? k : pixels) % N == 0 && aligned(y)) return biased<N, RELU>(y, b, n, k, pixels);
    biased<1, RELU>(y, b, n, k, pixels);
}

extern "C" __global__ void add_bias(T* y, const float* b, long long n, long long k, long long pixels) {
    any_biased<false>(y, b, n, k, pixels);
}

extern "C" __global__ void add_bias_relu(T* y, const float* b, long long n, long long k, long long pixels) {
    any_biased<true>(y, b, n, k, pixels);
}

// The gradient for a matrix. A block per slice and 32 columns: threadIdx.x: columns, threadIdx.y (at most 16): rows.
extern "C" __global__ void bias_gradient(const T* gy, float* gb, long long n, long long k, long long pixels,
                                         long long slices) {
    __shared__ float partial[16][32];
    const long long blocks = (k + 31) / 32, slice = blockIdx.x / blocks, rows = n / slices * pixels;
    const long long column = (blockIdx.x - slice * blocks) * 32 + threadIdx.x;
    const T* from = gy + slice * rows * k;
    float sum = 0.0f;
    if (column < k) {
        for (long long row = threadIdx.y; row < rows; row += blockDim.y) sum += to_float(from[row * k + column]);
    }
    partial[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < k) {
        for (int y = 1; y < static_cast<int>(blockDim.y); ++y) sum += partial[y][threadIdx.x];
        gb[slice * k + column] = sum;
    }
}

// The gradient for feature maps in NCHW. A block per slice and channel.
extern "C" __global__ void bias_gradient_of_maps(const T* gy, float* gb, long long n, long long k, long long pixels,
                                                 long long slices) {
    const long long images = n / slices;
    for (long long i = blockIdx.x; i < slices * k; i += gridDim.x) {
        const long long slice = i / k, channel = i - slice * k;
        float sum = 0.0f;
        for (long long image = slice * images; image < (slice + 1) * images; ++image) {
            const T* plane = gy + (image * k + channel) * pixels;
            for (long long pixel = threadIdx.x; pixel < pixels; pixel += blockDim.x) sum += to_float(plane[pixel]);
        }
        sum = block_reduce(sum, Sum());
        if (threadIdx.x == 0) gb[i] = sum;
    }
}
