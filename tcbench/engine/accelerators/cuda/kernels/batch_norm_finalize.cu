// Turns a convolution's statistics into the factors of a batch normalisation. Computes in double, since the variance is
// a difference of large numbers; there are only a few thousand channels.

extern "C" __global__ void batch_norm_finalize(const float* sum, const float* square_sum, const float* gamma,
                                               const float* beta, float* running_mean, float* running_var, float* mean,
                                               float* inv_std, float* scale, float* bias, long long channels,
                                               long long count, float eps, float momentum) {
    const long long c = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (c >= channels) return;
    const double n = static_cast<double>(count);
    const double m = sum[c] / n;
    const double difference = square_sum[c] / n - m * m;
    const double var = difference < 0.0 ? 0.0 : difference;  // NaN stays NaN
    const double inverse = 1.0 / sqrt(var + eps);
    const double factor = gamma[c] * inverse;
    const double unbiased = var * (n / (count > 1 ? n - 1.0 : 1.0));
    const double keep = 1.0 - static_cast<double>(momentum);
    running_mean[c] = static_cast<float>(keep * running_mean[c] + momentum * m);
    running_var[c] = static_cast<float>(keep * running_var[c] + momentum * unbiased);
    mean[c] = static_cast<float>(m);
    inv_std[c] = static_cast<float>(inverse);
    scale[c] = static_cast<float>(factor);
    bias[c] = static_cast<float>(beta[c] - m * factor);
}
