/* A log-linear histogram of nanoseconds: 128 steps for each doubling, so that a value is off by less than 0.8 %. No allocation, no sorting. */
#pragma once
#include <stdint.h>

#define STEP_BITS 7
#define STEPS (1u << STEP_BITS)

struct histogram {
    uint64_t counts[(64 - STEP_BITS + 1) << STEP_BITS];
    uint64_t total, max_ns;
};

static inline void histogram_add(struct histogram *histogram, uint64_t ns) {
    uint32_t shift = ns < STEPS ? 0 : (uint32_t)(63 - __builtin_clzll(ns) - STEP_BITS);
    uint64_t index = ns < STEPS ? ns : ((uint64_t)(shift + 1) << STEP_BITS) + ((ns >> shift) & (STEPS - 1));
    histogram->counts[index]++;
    histogram->total++;
    if (ns > histogram->max_ns)
        histogram->max_ns = ns;
}

/* The smallest value that at least `share` of all values do not pass, in microseconds. */
static inline double histogram_us(const struct histogram *histogram, double share) {
    uint64_t wanted = (uint64_t)(share * (double)histogram->total + 0.999999), seen = 0;
    if (histogram->total == 0)
        return 0;
    for (uint64_t index = 0; index < sizeof(histogram->counts) / 8; index++) {
        seen += histogram->counts[index];
        if (seen >= wanted) {
            uint64_t shift = index < STEPS ? 0 : (index >> STEP_BITS) - 1;
            uint64_t low = index < STEPS ? index : ((index & (STEPS - 1)) | STEPS) << shift;
            uint64_t middle = low + ((1ull << shift) >> 1);
            return (double)(middle < histogram->max_ns ? middle : histogram->max_ns) / 1000.0;
        }
    }
    return (double)histogram->max_ns / 1000.0;
}
