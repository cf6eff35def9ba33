// Dropout. DTYPE is half, bfloat16 or float, NHWC 0 or 1. Works with any number of blocks. A thread
// per value is fast enough: dropout takes little of a network's time.

#include "common.cuh"

typedef DTYPE T;

// Lane `lane` of Philox4x32-10's block (c0, 0, c2, 0) with the key (k0, 0).
__device__ inline unsigned int philox(unsigned int c0, unsigned int c2, unsigned int k0, int lane) {
    unsigned int c1 = 0, c3 = 0, k1 = 0;
    for (int round = 0; round < 10; ++round) {
        const unsigned long long first = 0xD2511F53ull * c0, second = 0xCD9E8D57ull * c2;
        c0 = static_cast<unsigned int>(second >> 32) ^ c1 ^ k0;
        c2 = static_cast<unsigned int>(first >> 32) ^ c3 ^ k1;
        c1 = static_cast<unsigned int>(second);
        c3 = static_cast<unsigned int>(first);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return lane == 0 ? c0 : lane == 1 ? c1 : lane == 2 ? c2 : c3;
}

extern "C" __global__ void dropout_forward(const T* x, const long long* counter, T* y, unsigned char* kept, long long n,
                                           long long c, long long pixels, long long threshold, float scale) {
    const unsigned int seed = static_cast<unsigned int>(counter[0]), count = static_cast<unsigned int>(counter[1]);
    for (long long i = thread_index(); i < n * c * pixels; i += thread_count()) {
        long long place = i;  // in NCHW
#if NHWC
        const long long pixel = i / c;
        place = ((pixel / pixels) * c + (i - pixel * c)) * pixels + pixel % pixels;
#endif
        const unsigned int drawn =
            philox(static_cast<unsigned int>(place / 4), count, seed, static_cast<int>(place % 4));
        const bool keep = drawn >= threshold;
        kept[i] = keep;
        put(y[i], keep ? to_float(x[i]) * scale : 0.0f);
    }
}

// A single thread updates the counter, which no other thread of this launch reads.
extern "C" __global__ void dropout_backward(const T* gy, const unsigned char* kept, long long* counter, T* gx,
                                            long long n, long long c, long long pixels, long long threshold,
                                            float scale) {
    for (long long i = thread_index(); i < n * c * pixels; i += thread_count()) {
        put(gx[i], kept[i] ? to_float(gy[i]) * scale : 0.0f);
    }
    if (thread_index() == 0) counter[1] += 1;
}
