/* The floor: stochastic-gradient Langevin steps for a logistic regression as a plain loop. A step draws row numbers (uniformly
   or from an alias table), asks for the rows ahead of their use, adds up their gradients, and moves. */

#include <math.h>
#include <stdint.h>

static inline uint64_t next(uint64_t *s) { /* splitmix64 */
    uint64_t z = (*s += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static inline int64_t draw(uint64_t *s, int64_t n_rows, const uint32_t *keep, const int32_t *other) {
    uint64_t word = next(s);
    int64_t row = (int64_t)(((word >> 32) * (uint64_t)n_rows) >> 32);
    return !keep || (uint32_t)word <= keep[row] ? row : other[row];
}

/* More rows asked for at a time than the processor keeps track of would be forgotten. */
#define AHEAD 32

static inline void fetch(const float *x, const float *y, const float *inverse_p, int64_t d, int64_t row) {
    for (int64_t j = 0; j < d; j += 16) __builtin_prefetch(x + row * d + j);
    __builtin_prefetch(y + row);
    if (inverse_p) __builtin_prefetch(inverse_p + row);
}

void sgld(const float *restrict x, const float *restrict y, const float *restrict inverse_p, const uint32_t *keep,
          const int32_t *other, int64_t n_rows, int64_t d, int64_t size, int64_t steps, float step_size, float *restrict theta,
          float *restrict draws, uint64_t seed) {
    int64_t rows[size];
    float gradient[d], noise[d + 1];
    for (int64_t t = 0; t < steps; t++) {
        for (int64_t i = 0; i < size; i++) {
            rows[i] = draw(&seed, n_rows, keep, other);
            if (i < AHEAD) fetch(x, y, inverse_p, d, rows[i]);
        }
        for (int64_t j = 0; j < d; j += 2) { /* Box and Muller */
            uint64_t word = next(&seed);
            float radius = sqrtf(-2 * logf(((uint32_t)word + 1.0f) * 0x1p-32f)), angle = 0x1.921fb6p-30f * (word >> 32);
            noise[j] = radius * cosf(angle), noise[j + 1] = radius * sinf(angle);
        }
        for (int64_t j = 0; j < d; j++) gradient[j] = theta[j] / 10;
        for (int64_t i = 0; i < size; i++) {
            const float *row = x + rows[i] * d;
            float z = 0;
            if (i + AHEAD < size) fetch(x, y, inverse_p, d, rows[i + AHEAD]);
            for (int64_t j = 0; j < d; j++) z += row[j] * theta[j];
            float weight = (inverse_p ? inverse_p[rows[i]] : (float)n_rows) / size;
            float slope = weight * (1 / (1 + expf(-z)) - y[rows[i]]);
            for (int64_t j = 0; j < d; j++) gradient[j] += slope * row[j];
        }
        for (int64_t j = 0; j < d; j++)
            draws[t * d + j] = theta[j] += -step_size / 2 * gradient[j] + sqrtf(step_size) * noise[j];
    }
}
