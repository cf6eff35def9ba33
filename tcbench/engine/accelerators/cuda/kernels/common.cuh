// Shared by all kernels: 16-bit types, 16-byte accesses, sums over a block. Included by every .cu file.
//
// No CUDA header is needed: float16 and bfloat16 are converted by the same PTX instructions as in cuda_fp16.h and
// cuda_bf16.h, and computed in float32. bfloat16 needs sm_80, everything else sm_70. Tests compile the same source as
// C++.

struct half {
    unsigned short bits;
};
struct bfloat16 {
    unsigned short bits;
};

#ifdef __CUDACC__
__device__ inline float half_bits_to_float(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

__device__ inline unsigned short float_to_half_bits(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

// Needs sm_80 or newer.
__device__ inline unsigned short float_to_bfloat16_bits(float x) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#endif

__device__ inline float to_float(half x) { return half_bits_to_float(x.bits); }
__device__ inline float to_float(bfloat16 x) { return __int_as_float(static_cast<unsigned>(x.bits) << 16); }
__device__ inline float to_float(float x) { return x; }

// Rounds to nearest even, in a single rounding.
__device__ inline void put(half& to, float x) { to.bits = float_to_half_bits(x); }
__device__ inline void put(bfloat16& to, float x) { to.bits = float_to_bfloat16_bits(x); }
__device__ inline void put(float& to, float x) { to = x; }

__device__ inline bool is_finite(float x) { return fabsf(x) <= 3.402823466e+38f; }

__device__ inline float infinity() { return __int_as_float(0x7f800000); }
__device__ inline float not_a_number() { return __int_as_float(0x7fc00000); }

// NaN stays NaN.
__device__ inline float relu(float x) { return x <= 0.0f ? 0.0f : x; }

// -- several values at once: the widest accesses are 16 bytes ---------------------------------------------------------

template <int BYTES>
struct Word {
    typedef uint4 type;
};
template <>
struct Word<8> {
    typedef uint2 type;
};
template <>
struct Word<4> {
    typedef unsigned int type;
};
template <>
struct Word<2> {
    typedef unsigned short type;
};
template <>
struct Word<1> {
    typedef unsigned char type;
};

// N values of X. Their address must be aligned to 16 bytes, or to their total size if that is smaller.
template <typename X, int N>
union Pack {
    typedef typename Word<N * sizeof(X)>::type Unit;
    static constexpr int UNITS = N * sizeof(X) / sizeof(Unit);

    X values[N];
    Unit units[UNITS];

    __device__ void load(const X* from) {
#pragma unroll
        for (int i = 0; i < UNITS; ++i) units[i] = reinterpret_cast<const Unit*>(from)[i];
    }

    __device__ void store(X* to) const {
#pragma unroll
        for (int i = 0; i < UNITS; ++i) reinterpret_cast<Unit*>(to)[i] = units[i];
    }
};

template <typename X, int N>
__device__ inline void load(const X* from, float (&to)[N]) {
    Pack<X, N> pack;
    pack.load(from);
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = to_float(pack.values[i]);
}

template <typename X, int N>
__device__ inline void store(X* to, const float (&from)[N]) {
    Pack<X, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) put(pack.values[i], from[i]);
    pack.store(to);
}

// The number of values of X in 16 bytes.
template <typename X>
constexpr int WIDTH = 16 / sizeof(X);

template <typename... X>
__device__ inline bool aligned(const X*... pointers) {
    return ((reinterpret_cast<unsigned long long>(pointers) | ...) & 15) == 0;
}

// -- a thread's position in a one-dimensional grid ------------------------------------------------------------------

__device__ inline long long thread_index() { return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline long long thread_count() { return static_cast<long long>(gridDim.x) * blockDim.x; }

// -- reductions, always in the same order -----------------------------------------------------------------------------

struct Sum {
    __device__ float operator()(float a, float b) const { return a + b; }
};
struct Max {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// All 32 lanes of a warp must call, and all get the result.
template <typename Combine>
__device__ inline float warp_reduce(float x, Combine combine) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x = combine(x, __shfl_xor_sync(0xffffffffu, x, lanes));
    return x;
}

// All threads of a one-dimensional block of whole warps must call, and all get the result.
template <typename Combine>
__device__ inline float block_reduce(float x, Combine combine) {
    __shared__ float partial[32];
    x = warp_reduce(x, combine);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
    __syncthreads();
    x = partial[0];
    for (int warp = 1; warp < static_cast<int>(blockDim.x) / 32; ++warp) x = combine(x, partial[warp]);
    __syncthreads();
    return x;
}
