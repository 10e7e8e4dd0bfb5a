/* XXH3 for Cython: the vendored single header, inlined, without its streaming half. */
#ifndef TOPICSD_HASH_H
#define TOPICSD_HASH_H

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#ifndef XXH_NO_STREAM
#define XXH_NO_STREAM
#endif
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define XXH_DISPATCH_AVX2 1
#define XXH_TARGET_AVX2 __attribute__((__target__("avx2")))
#endif
#include "xxhash.h"

#include <stddef.h>
#include <stdint.h>

#define HASH_WIDE_BYTES_MIN 512u /* below, asking for AVX2 would not pay */

#ifdef XXH_DISPATCH_AVX2
/* The same value by AVX2, which is asked of the machine, not of the compiler. */
static __attribute__((target("avx2"), noinline, unused)) uint64_t xxh3_64_wide(const void *bytes, size_t length)
{
    return XXH3_hashLong_64b_internal(bytes, length, XXH3_kSecret, sizeof(XXH3_kSecret), XXH3_accumulate_avx2, XXH3_scrambleAcc_avx2);
}

static __attribute__((target("avx2"), noinline, unused)) uint64_t xxh3_64_seeded_wide(const void *bytes, size_t length, uint64_t seed)
{
    return XXH3_hashLong_64b_withSeed_internal(bytes, length, seed, XXH3_accumulate_avx2, XXH3_scrambleAcc_avx2, XXH3_initCustomSecret_scalar);
}
#endif

static inline uint64_t xxh3_64(const void *bytes, size_t length)
{
#ifdef XXH_DISPATCH_AVX2
    if (length >= HASH_WIDE_BYTES_MIN && __builtin_cpu_supports("avx2"))
        return xxh3_64_wide(bytes, length);
#endif
    return XXH3_64bits(bytes, length);
}

static inline uint64_t xxh3_64_seeded(const void *bytes, size_t length, uint64_t seed)
{
#ifdef XXH_DISPATCH_AVX2
    if (length >= HASH_WIDE_BYTES_MIN && __builtin_cpu_supports("avx2"))
        return xxh3_64_seeded_wide(bytes, length, seed);
#endif
    return XXH3_64bits_withSeed(bytes, length, seed);
}

#endif
