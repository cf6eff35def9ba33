/* Batch normalisation of rows of channels, in two passes over memory: sums of each part of the rows, then the result.
   Functions have the form of dnnl_primitive_execute, so that a team launches them. */

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#ifndef __AVX512BW__
#error "a processor without vectors of 512 bits"
#endif

enum { X, GAMMA, BETA, RUNNING_MEAN, RUNNING_VAR, Y, MEAN, INV_STD, MASK, GY, GX, GGAMMA, GBETA, N_ARRAYS };
enum { VALUES = 16 }; /* of a vector */

struct norm {
    void *arrays[N_ARRAYS]; /* values of x, y and their gradients; float32 all else; a bit of the mask for each value */
    float *sums;            /* two of each channel for each part */
    float *factors;         /* three of each channel */
    int64_t rows, channels, parts, is_bfloat16, has_relu;
    float eps, momentum;
};

static inline __m512 vector(const struct norm *norm, int array, int64_t c) {
    return _mm512_loadu_ps((const float *)norm->arrays[array] + c);
}

static inline void set(const struct norm *norm, int array, int64_t c, __m512 to) {
    _mm512_storeu_ps((float *)norm->arrays[array] + c, to);
}

static inline __m512 load(int is_bfloat16, const void *from, int64_t i) {
    if (!is_bfloat16) return _mm512_loadu_ps((const float *)from + i);
    const __m256i bits = _mm256_loadu_si256((const void *)((const uint16_t *)from + i));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

/* Rounded to nearest even; not a number stays so. */
static inline void store(int is_bfloat16, void *to, int64_t i, __m512 from) {
    if (!is_bfloat16) {
        _mm512_storeu_ps((float *)to + i, from);
        return;
    }
    const __m512i bits = _mm512_castps_si512(from), one = _mm512_set1_epi32(1);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(from, from, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((void *)((uint16_t *)to + i), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

static inline __m512 gradient(const struct norm *norm, int is_bfloat16, int has_relu, int64_t i) {
    const __m512 g = load(is_bfloat16, norm->arrays[GY], i);
    return has_relu ? _mm512_maskz_mov_ps(((const uint16_t *)norm->arrays[MASK])[i / VALUES], g) : g;
}

/* Forward of d = x - the first row: of d and d * d. Backward of d = x - mean: of g and g * d. Four rows at a time, since
   the sums of all channels are in the cache and not in registers. */
static inline void sum_rows(const struct norm *norm, int64_t row, int rows, float *sums, int backward, int is_bfloat16,
                            int has_relu) {
    const int64_t channels = norm->channels;
    const void *x = norm->arrays[X];
    for (int64_t c = 0; c < channels; c += VALUES) {
        const __m512 from = backward ? vector(norm, MEAN, c) : load(is_bfloat16, x, c);
        __m512 first = _mm512_setzero_ps(), second = first;
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const int64_t place = (row + r) * channels + c;
            const __m512 d = _mm512_sub_ps(load(is_bfloat16, x, place), from);
            const __m512 g = backward ? gradient(norm, is_bfloat16, has_relu, place) : d;
            first = _mm512_add_ps(first, g);
            second = _mm512_fmadd_ps(g, d, second);
        }
        float *a = sums + c, *b = a + channels;
        _mm512_storeu_ps(a, _mm512_add_ps(_mm512_loadu_ps(a), first));
        _mm512_storeu_ps(b, _mm512_add_ps(_mm512_loadu_ps(b), second));
    }
}

static inline void sum(const struct norm *norm, int64_t part, int backward, int is_bfloat16, int has_relu) {
    const int64_t end = norm->rows * (part + 1) / norm->parts;
    int64_t row = norm->rows * part / norm->parts;
    float *sums = norm->sums + 2 * norm->channels * part;
    memset(sums, 0, 2 * norm->channels * sizeof *sums);
    for (; row + 4 <= end; row += 4) sum_rows(norm, row, 4, sums, backward, is_bfloat16, has_relu);
    for (; row < end; row++) sum_rows(norm, row, 1, sums, backward, is_bfloat16, has_relu);
}

/* Means over the rows of what was summed. In float64, since they may be small beside what they are made of; `spread`:
   the second less the square of the first. */
static inline void means(const struct norm *norm, int64_t c, int spread, __m512 *first, __m512 *second) {
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
    *first = _mm512_loadu_ps(narrow[0]);
    *second = _mm512_loadu_ps(narrow[1]);
}

/* Forward: scale * (x - mean) + shift, where it is positive. Backward: scale * (g - mean of g - (x - mean) * slope). */
static inline void apply(const struct norm *norm, int64_t part, int backward, int is_bfloat16, int has_relu) {
    const int64_t channels = norm->channels, end = norm->rows * (part + 1) / norm->parts;
    const float *scale = norm->factors, *shift = scale + channels, *slope = shift + channels;
    const void *x = norm->arrays[X];
    for (int64_t row = norm->rows * part / norm->parts; row < end; row++)
        for (int64_t c = 0; c < channels; c += VALUES) {
            const int64_t place = row * channels + c;
            const __m512 a = _mm512_loadu_ps(scale + c), b = _mm512_loadu_ps(shift + c);
            const __m512 d = _mm512_sub_ps(load(is_bfloat16, x, place), vector(norm, MEAN, c));
            if (backward) {
                const __m512 g = _mm512_sub_ps(gradient(norm, is_bfloat16, has_relu, place), b);
                const __m512 gx = _mm512_fnmadd_ps(d, _mm512_loadu_ps(slope + c), g);
                store(is_bfloat16, norm->arrays[GX], place, _mm512_mul_ps(a, gx));
            } else {
                __m512 y = _mm512_fmadd_ps(d, a, b);
                if (has_relu) { /* what is not a number stays */
                    const __mmask16 mask = _mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_NLE_UQ);
                    ((uint16_t *)norm->arrays[MASK])[place / VALUES] = mask;
                    y = _mm512_maskz_mov_ps(mask, y);
                }
                store(is_bfloat16, norm->arrays[Y], place, y);
            }
        }
}

#define EACH(of, backward)                                                        \
    if (norm->is_bfloat16) {                                                      \
        norm->has_relu ? of(norm, part, backward, 1, 1) : of(norm, part, backward, 1, 0); \
    } else {                                                                      \
        norm->has_relu ? of(norm, part, backward, 0, 1) : of(norm, part, backward, 0, 0); \
    }                                                                             \
    return 0

int forward_sums(const struct norm *norm, int64_t part, int n, void *arguments) { EACH(sum, 0); }
int backward_sums(const struct norm *norm, int64_t part, int n, void *arguments) { EACH(sum, 1); }
int forward_apply(const struct norm *norm, int64_t part, int n, void *arguments) { EACH(apply, 0); }
int backward_apply(const struct norm *norm, int64_t part, int n, void *arguments) { EACH(apply, 1); }

/* Mean, inverse standard deviation, what is kept of both, and the factors. */
int forward_factors(const struct norm *norm, int64_t part, int n, void *arguments) {
    const __m512 new = _mm512_set1_ps(norm->momentum), old = _mm512_set1_ps(1 - norm->momentum);
    const __m512 unbiased = _mm512_set1_ps(norm->momentum * norm->rows / (norm->rows > 1 ? norm->rows - 1 : 1));
    for (int64_t c = 0; c < norm->channels; c += VALUES) {
        __m512 d, spread;
        means(norm, c, 1, &d, &spread);
        const __m512 variance = _mm512_max_ps(_mm512_setzero_ps(), spread); /* of what is not a number the second */
        const __m512 mean = _mm512_add_ps(load(norm->is_bfloat16, norm->arrays[X], c), d);
        const __m512 deviation = _mm512_sqrt_ps(_mm512_add_ps(variance, _mm512_set1_ps(norm->eps)));
        const __m512 inv_std = _mm512_div_ps(_mm512_set1_ps(1), deviation);
        set(norm, MEAN, c, mean);
        set(norm, INV_STD, c, inv_std);
        set(norm, RUNNING_MEAN, c, _mm512_fmadd_ps(vector(norm, RUNNING_MEAN, c), old, _mm512_mul_ps(mean, new)));
        set(norm, RUNNING_VAR, c, _mm512_fmadd_ps(vector(norm, RUNNING_VAR, c), old, _mm512_mul_ps(variance, unbiased)));
        _mm512_storeu_ps(norm->factors + c, _mm512_mul_ps(vector(norm, GAMMA, c), inv_std));
        _mm512_storeu_ps(norm->factors + norm->channels + c, vector(norm, BETA, c));
    }
    return 0;
}

int backward_factors(const struct norm *norm, int64_t part, int n, void *arguments) {
    const __m512 count = _mm512_set1_ps(norm->rows);
    for (int64_t c = 0; c < norm->channels; c += VALUES) {
        __m512 g, product;
        means(norm, c, 0, &g, &product);
        const __m512 inv_std = vector(norm, INV_STD, c), slope = _mm512_mul_ps(product, inv_std);
        set(norm, GGAMMA, c, _mm512_mul_ps(slope, count));
        set(norm, GBETA, c, _mm512_mul_ps(g, count));
        _mm512_storeu_ps(norm->factors + c, _mm512_mul_ps(vector(norm, GAMMA, c), inv_std));
        _mm512_storeu_ps(norm->factors + norm->channels + c, g);
        _mm512_storeu_ps(norm->factors + 2 * norm->channels + c, _mm512_mul_ps(slope, inv_std));
    }
    return 0;
}
