/* Batch normalisation of rows of channels in two passes over memory: partial sums of the rows, then the result.
   The functions have the signature of dnnl_primitive_execute, so that a thread team can call them. */

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512BW__)
enum { VALUES = 16 }; /* values per vector */
typedef __m512 vec;
typedef __m512i ints;
typedef __m256i halves;
typedef uint16_t bits; /* one bit per value */
#define V(name) _mm512_##name
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
enum { VALUES = 8 };
typedef __m256 vec;
typedef __m256i ints;
typedef __m128i halves;
typedef uint8_t bits;
#define V(name) _mm256_##name
#else
#error "a processor without vectors of 256 bits"
#endif

enum { FLOAT32, FLOAT16, BFLOAT16 };
enum { POSITIVE = _CMP_NLE_UQ }; /* not <= 0, which includes NaN */
enum { X, GAMMA, BETA, RUNNING_MEAN, RUNNING_VAR, Y, MEAN, INV_STD, MASK, GY, GX, GGAMMA, GBETA, N_ARRAYS };

struct norm {
    void *arrays[N_ARRAYS]; /* x, y and their gradients: `dtype`; mask: one bit per value; all others: float32 */
    float *sums;            /* two per channel and part */
    float *factors;         /* three per channel */
    int64_t rows, channels, parts, dtype, has_relu, streams;
    float eps, momentum;
};

/* Returns for each value whether it is positive or NaN. */
static inline bits positive(vec y) {
#ifdef __AVX512BW__
    return _mm512_cmp_ps_mask(y, _mm512_setzero_ps(), POSITIVE);
#else
    return _mm256_movemask_ps(_mm256_cmp_ps(y, _mm256_setzero_ps(), POSITIVE));
#endif
}

/* Returns the values whose bit is set, and 0 for the others. */
static inline vec where(bits mask, vec from) {
#ifdef __AVX512BW__
    return _mm512_maskz_mov_ps(mask, from);
#else
    const ints each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const ints has = _mm256_cmpeq_epi32(_mm256_set1_epi32(mask) & each, each);
    return (vec)((ints)from & has);
#endif
}

static inline vec vector(const struct norm *norm, int array, int64_t c) {
    return V(loadu_ps)((const float *)norm->arrays[array] + c);
}

static inline void set(const struct norm *norm, int array, int64_t c, vec to) {
    V(storeu_ps)((float *)norm->arrays[array] + c, to);
}

static inline vec load(int dtype, const void *from, int64_t i) {
    if (dtype == FLOAT32) return V(loadu_ps)((const float *)from + i);
    halves narrow;
    memcpy(&narrow, (const uint16_t *)from + i, sizeof narrow);
    return dtype == FLOAT16 ? V(cvtph_ps)(narrow) : (vec)V(slli_epi32)(V(cvtepu16_epi32)(narrow), 16);
}

static inline halves to_bfloat16(vec from) {
    const ints all = (ints)from, quiet = V(set1_epi32)(0x400000);
    const ints odd = V(srli_epi32)(all, 16) & V(set1_epi32)(1);
    const ints rounded = V(add_epi32)(V(add_epi32)(all, V(set1_epi32)(0x7fff)), odd);
#ifdef __AVX512BW__
    const __mmask16 is_nan = _mm512_cmp_ps_mask(from, from, _CMP_UNORD_Q);
    const ints upper = _mm512_srli_epi32(_mm512_mask_or_epi32(rounded, is_nan, all, quiet), 16);
    return _mm512_cvtepi32_epi16(upper);
#else
    const vec is_nan = _mm256_cmp_ps(from, from, _CMP_UNORD_Q), kept = (vec)(all | quiet);
    const ints upper = _mm256_srli_epi32((ints)_mm256_blendv_ps((vec)rounded, kept, is_nan), 16);
    const ints packed = _mm256_packus_epi32(upper, upper); /* packs each half of 128 bits separately */
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#endif
}

/* Rounds to nearest even; NaN stays NaN. */
static inline halves narrowed(int dtype, vec from) {
    return dtype == FLOAT16 ? V(cvtps_ph)(from, _MM_FROUND_TO_NEAREST_INT) : to_bfloat16(from);
}

static inline void store(int dtype, void *to, int64_t i, vec from) {
    if (dtype == FLOAT32) {
        V(storeu_ps)((float *)to + i, from);
    } else {
        const halves narrow = narrowed(dtype, from);
        memcpy((uint16_t *)to + i, &narrow, sizeof narrow);
    }
}

/* Stores past the caches; the address must be aligned to the size of a vector. */
static inline void stream(int dtype, void *to, int64_t i, vec from) {
    if (dtype == FLOAT32)
        V(stream_ps)((float *)to + i, from);
    else
#ifdef __AVX512BW__
        _mm256_stream_si256((halves *)((uint16_t *)to + i), narrowed(dtype, from));
#else
        _mm_stream_si128((halves *)((uint16_t *)to + i), narrowed(dtype, from));
#endif
}

static inline vec gradient(const struct norm *norm, int dtype, int has_relu, int64_t i) {
    const vec g = load(dtype, norm->arrays[GY], i);
    return has_relu ? where(((const bits *)norm->arrays[MASK])[i / VALUES], g) : g;
}

/* Adds rows to the sums. Forward: d and d * d, where d = x - the first row. Backward: g and g * d, where d = x - mean.
   Callers pass four rows at a time, since the sums of all channels are in the cache and not in registers. */
static inline void sum_rows(const struct norm *norm, int64_t row, int rows, float *sums, int backward, int dtype,
                            int has_relu) {
    const int64_t channels = norm->channels;
    const void *x = norm->arrays[X];
    for (int64_t c = 0; c < channels; c += VALUES) {
        const vec from = backward ? vector(norm, MEAN, c) : load(dtype, x, c);
        vec first = V(setzero_ps)(), second = first;
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const int64_t place = (row + r) * channels + c;
            const vec d = load(dtype, x, place) - from;
            const vec g = backward ? gradient(norm, dtype, has_relu, place) : d;
            first += g;
            second = V(fmadd_ps)(g, d, second);
        }
        float *a = sums + c, *b = a + channels;
        V(storeu_ps)(a, V(loadu_ps)(a) + first);
        V(storeu_ps)(b, V(loadu_ps)(b) + second);
    }
}

static inline void sum(const struct norm *norm, int64_t part, int backward, int dtype, int has_relu) {
    const int64_t end = norm->rows * (part + 1) / norm->parts;
    int64_t row = norm->rows * part / norm->parts;
    float *sums = norm->sums + 2 * norm->channels * part;
    memset(sums, 0, 2 * norm->channels * sizeof *sums);
    for (; row + 4 <= end; row += 4) sum_rows(norm, row, 4, sums, backward, dtype, has_relu);
    for (; row < end; row++) sum_rows(norm, row, 1, sums, backward, dtype, has_relu);
}

/* Returns the means of both sums over all rows; with `spread`, the second mean minus the square of the first. Computed
   in float64, since the results may be much smaller than the sums. */
static inline void means(const struct norm *norm, int64_t c, int spread, vec *first, vec *second) {
    double sum[VALUES] = {0}, product[VALUES] = {0};
    float narrow[2][VALUES];
    for (int64_t part = 0; part < norm->parts; part++) {
        const float *sums = norm->sums + 2 * norm->channels * part + c;
        for (int i = 0; i < VALUES; i++) sum[i] += sums[i], product[i] += sums[norm->channels + i];
    }
    for (int i = 0; i < VALUES; i++) {
        const double mean = sum[i] / norm->rows, other = product[i] / norm->rows;
        narrow[0][i] = mean;
        narrow[1][i] = spread ? other - mean * mean : other;
    }
    *first = V(loadu_ps)(narrow[0]);
    *second = V(loadu_ps)(narrow[1]);
}

/* Forward: y = scale * (x - mean) + shift, with ReLU. Backward: gx = scale * (g - mean of g - (x - mean) * slope). */
static inline void apply(const struct norm *norm, int64_t part, int backward, int dtype, int has_relu) {
    const int64_t channels = norm->channels, end = norm->rows * (part + 1) / norm->parts;
    const float *scale = norm->factors, *shift = scale + channels, *slope = shift + channels;
    const void *x = norm->arrays[X];
    for (int64_t row = norm->rows * part / norm->parts; row < end; row++)
        for (int64_t c = 0; c < channels; c += VALUES) {
            const int64_t place = row * channels + c;
            const vec a = V(loadu_ps)(scale + c), b = V(loadu_ps)(shift + c);
            const vec d = load(dtype, x, place) - vector(norm, MEAN, c);
            if (backward) {
                const vec g = gradient(norm, dtype, has_relu, place) - b;
                const vec gx = V(fnmadd_ps)(d, V(loadu_ps)(slope + c), g);
                (norm->streams ? stream : store)(dtype, norm->arrays[GX], place, a * gx);
            } else {
                vec y = V(fmadd_ps)(d, a, b);
                if (has_relu) { /* NaN stays NaN */
                    /* The mask is that of the stored value, which may be rounded to 0. */
                    const vec stored = dtype == FLOAT16 ? V(cvtph_ps)(V(cvtps_ph)(y, _MM_FROUND_TO_NEAREST_INT)) : y;
                    const bits mask = positive(stored);
                    ((bits *)norm->arrays[MASK])[place / VALUES] = mask;
                    y = where(mask, y);
                }
                store(dtype, norm->arrays[Y], place, y);
            }
        }
    if (backward && norm->streams) _mm_sfence(); /* makes streamed values visible to other threads */
}

#define EITHER(of, backward, dtype) \
    norm->has_relu ? of(norm, part, backward, dtype, 1) : of(norm, part, backward, dtype, 0)
#define EACH(of, backward)                                                        \
    if (norm->dtype == FLOAT32)                                                   \
        EITHER(of, backward, FLOAT32);                                            \
    else if (norm->dtype == FLOAT16)                                              \
        EITHER(of, backward, FLOAT16);                                            \
    else                                                                          \
        EITHER(of, backward, BFLOAT16);                                           \
    return 0

int forward_sums(const struct norm *norm, int64_t part, int n, void *arguments) { EACH(sum, 0); }
int backward_sums(const struct norm *norm, int64_t part, int n, void *arguments) { EACH(sum, 1); }
int forward_apply(const struct norm *norm, int64_t part, int n, void *arguments) { EACH(apply, 0); }
int backward_apply(const struct norm *norm, int64_t part, int n, void *arguments) { EACH(apply, 1); }

/* Computes mean, inverse standard deviation, running statistics and the factors. */
int forward_factors(const struct norm *norm, int64_t part, int n, void *arguments) {
    const vec new = V(set1_ps)(norm->momentum), old = V(set1_ps)(1 - norm->momentum);
    const vec unbiased = V(set1_ps)(norm->momentum * norm->rows / (norm->rows > 1 ? norm->rows - 1 : 1));
    for (int64_t c = 0; c < norm->channels; c += VALUES) {
        vec d, spread;
        means(norm, c, 1, &d, &spread);
        const vec variance = V(max_ps)(V(setzero_ps)(), spread); /* max returns the second operand if one is NaN */
        const vec mean = load(norm->dtype, norm->arrays[X], c) + d;
        const vec inv_std = V(set1_ps)(1) / V(sqrt_ps)(variance + V(set1_ps)(norm->eps));
        set(norm, MEAN, c, mean);
        set(norm, INV_STD, c, inv_std);
        set(norm, RUNNING_MEAN, c, V(fmadd_ps)(vector(norm, RUNNING_MEAN, c), old, mean * new));
        set(norm, RUNNING_VAR, c, V(fmadd_ps)(vector(norm, RUNNING_VAR, c), old, variance * unbiased));
        V(storeu_ps)(norm->factors + c, vector(norm, GAMMA, c) * inv_std);
        V(storeu_ps)(norm->factors + norm->channels + c, vector(norm, BETA, c));
    }
    return 0;
}

int backward_factors(const struct norm *norm, int64_t part, int n, void *arguments) {
    const vec count = V(set1_ps)(norm->rows);
    for (int64_t c = 0; c < norm->channels; c += VALUES) {
        vec g, product;
        means(norm, c, 0, &g, &product);
        const vec inv_std = vector(norm, INV_STD, c), slope = product * inv_std;
        set(norm, GGAMMA, c, slope * count);
        set(norm, GBETA, c, g * count);
        V(storeu_ps)(norm->factors + c, vector(norm, GAMMA, c) * inv_std);
        V(storeu_ps)(norm->factors + norm->channels + c, g);
        V(storeu_ps)(norm->factors + 2 * norm->channels + c, slope * inv_std);
    }
    return 0;
}
