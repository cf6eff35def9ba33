// Softmax cross entropy and its gradient. DTYPE is half, bfloat16 or float.

#include "common.cuh"

typedef DTYPE T;

// A block per row. A row that holds a NaN or +infinity becomes NaN.
extern "C" __global__ void softmax_cross_entropy_forward(const T* x, const int* t, float* log_p, float* losses,
                                                         long long n, long long k) {
    for (long long row = blockIdx.x; row < n; row += gridDim.x) {
        const T* logits = x + row * k;
        float max = to_float(logits[0]);
        for (long long i = threadIdx.x; i < k; i += blockDim.x) max = fmaxf(max, to_float(logits[i]));
        max = block_reduce(max, Max());
        float sum = 0.0f;
        for (long long i = threadIdx.x; i < k; i += blockDim.x) sum += expf(to_float(logits[i]) - max);
        const float log_sum = logf(block_reduce(sum, Sum()));
        for (long long i = threadIdx.x; i < k; i += blockDim.x) {
            log_p[row * k + i] = to_float(logits[i]) - max - log_sum;
        }
        if (threadIdx.x == 0) {
            const int label = t[row];
            const bool in_range = label >= 0 && label < k;
            losses[row] = in_range ? -(to_float(logits[label]) - max - log_sum) : not_a_number();
        }
    }
}

// A block per row.
extern "C" __global__ void softmax_cross_entropy_backward(const float* log_p, const int* t, const float* gloss, T* gx,
                                                          long long n, long long k, float weight) {
    const float factor = *gloss * weight / static_cast<float>(n);
    for (long long row = blockIdx.x; row < n; row += gridDim.x) {
        const int label = t[row];
        for (long long i = threadIdx.x; i < k; i += blockDim.x) {
            const float p = expf(log_p[row * k + i]);
            put(gx[row * k + i], (i == label ? p - 1.0f : p) * factor);
        }
    }
}
