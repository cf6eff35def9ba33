/* SGD with momentum and weight decay on the rows of a chunk table: weights, velocity and gradient are read and written
   once. The arithmetic is NumPy's, operation by operation, so products may not be contracted into fused ones. And the
   conversions that this takes, for others. */

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

/* Rounded to nearest even; not a number stays so. */
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

/* So many values from 16 bits of dtype, or of -dtype to them. Of the form of dnnl_primitive_execute, so that a team
   launches it. */
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

/* v = momentum * v + of_gradient * g + of_weight * w; w += v. A gradient that is not finite keeps both. Returns whether
   there is one: asked of all before, while they stay in the first-level cache, since to choose value by value takes
   longer than memory does. */
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

/* `table` and `rows` of `chunks`: see Parameters. Gradients are of dtype `gradients[1]` where a parameter has weights of
   16 bits, of dtype `weights`, and else of `gradients[0]`. Returns the number of chunks with one that is not finite. */
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
