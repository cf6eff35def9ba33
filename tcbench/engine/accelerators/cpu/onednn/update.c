/* SGD with momentum and weight decay on the rows of a chunk table, in one pass over weights, velocities and gradients;
   and conversions between 16 bits and float32. Results are equal to NumPy's bit by bit, so the compiler must not
   contract multiplications and additions into fused ones. */

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#ifndef __F16C__
#error "a processor without conversions of float16"
#endif

enum { FLOAT32, FLOAT16, BFLOAT16 };
enum { TILE = 512 }; /* values whose gradients in float32 stay in the first-level cache */

static void widen(int dtype, const void *from, float *to, int64_t n) {
    const uint16_t *bits = from;
    int64_t i = 0;
    if (dtype == FLOAT32) {
        memcpy(to, from, n * sizeof(float));
    } else if (dtype == BFLOAT16) {
        uint32_t *wide = (uint32_t *)to;
        for (; i < n; i++) wide[i] = (uint32_t)bits[i] << 16;
    } else {
        for (; i + 8 <= n; i += 8)
            _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(bits + i))));
        for (; i < n; i++) to[i] = _cvtsh_ss(bits[i]);
    }
}

/* Rounds to nearest even; NaN stays NaN. */
static void narrow(int dtype, const float *from, uint16_t *to, int64_t n) {
    int64_t i = 0;
    if (dtype == BFLOAT16) {
        const uint32_t *bits = (const uint32_t *)from;
        for (; i < n; i++) {
            const uint32_t rounded = bits[i] + 0x7fff + (bits[i] >> 16 & 1), quiet = bits[i] | 0x400000;
            to[i] = ((bits[i] & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16;
        }
    } else {
        for (; i + 8 <= n; i += 8)
            _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), 0));
        for (; i < n; i++) to[i] = _cvtss_sh(from[i], 0);
    }
}

/* Converts `values` values from the 16-bit dtype `dtype` to float32, or with a negative dtype from float32 to -dtype.
   It has the signature of dnnl_primitive_execute, so that a thread team can call it. */
int convert(const void *from, void *to, int dtype, void *values) {
    const int64_t n = (int64_t)values;
    if (dtype > 0)
        widen(dtype, from, to, n);
    else
        narrow(-dtype, from, to, n);
    return 0;
}

static int is_finite(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits & 0x7f800000) != 0x7f800000;
}

/* Computes v = momentum * v + of_gradient * g + of_weight * w, then w += v. A value whose gradient is not finite keeps
   v and w. Returns whether there is such a gradient. All gradients are checked first, while they stay in the first-level
   cache, since a check per value in the main loop takes longer than the memory accesses. */
static int step(const float *restrict g, float *restrict v, float *restrict w, int64_t n, float momentum,
                float of_gradient, float of_weight) {
    int overflow = 0;
    for (int64_t i = 0; i < n; i++) overflow |= !is_finite(g[i]);
    for (int64_t i = 0; i < n; i++) {
        float next = momentum * v[i];
        next += of_gradient * g[i];
        next += of_weight * w[i];
        if (overflow && !is_finite(g[i])) continue;
        v[i] = next;
        w[i] += next;
    }
    return overflow;
}

/* Updates the parameters in `rows` rows of `chunks`; see Parameters for `table` and `chunks`. Gradients have the dtype
   `gradients[1]` if the parameter has 16-bit weights, of dtype `weights`, else `gradients[0]`. Returns the number of
   chunks with a gradient that is not finite. */
int64_t batched_update(const int64_t *table, const int64_t *chunks, int64_t rows, float *master, float *velocity,
                       float momentum, float of_gradient, float of_weight, const int *gradients, int weights) {
    int64_t overflows = 0;
    float g[TILE];
    for (const int64_t *row = chunks; row < chunks + 4 * rows; row += 4) {
        const char *gradient = (const char *)table[2 * row[0]];
        uint16_t *narrowed = (uint16_t *)table[2 * row[0] + 1];
        const int dtype = gradients[narrowed != NULL];
        int overflow = 0;
        for (int64_t i = row[1]; i < row[2]; i += TILE) {
            const int64_t n = row[2] - i < TILE ? row[2] - i : TILE, place = row[3] + i - row[1];
            const float *single = (const float *)gradient + i;
            if (dtype != FLOAT32) widen(dtype, gradient + 2 * i, g, n), single = g;
            overflow |= step(single, velocity + place, master + place, n, momentum, of_gradient, of_weight);
            if (narrowed) narrow(weights, master + place, narrowed + i, n);
        }
        overflows += overflow;
    }
    return overflows;
}
