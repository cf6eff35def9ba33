// The mean over a batch, times a weight.

#include "common.cuh"

// Launch with one block.
extern "C" __global__ void mean_loss(const float* losses, float* loss, long long n, float weight) {
    float sum = 0.0f;
    for (long long i = threadIdx.x; i < n; i += blockDim.x) sum += losses[i];
    sum = block_reduce(sum, Sum());
    if (threadIdx.x == 0) *loss = sum / static_cast<float>(n) * weight;
}
