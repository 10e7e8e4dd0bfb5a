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
#include <string.h>

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

/* What XXH3 makes of a seed before it hashes more than 240 bytes: kept where many values have one seed, it is half of the time of a short one. */
struct hash_secret {
    uint64_t seed;
    _Alignas(8) uint8_t bytes[XXH_SECRET_DEFAULT_SIZE];
};

static inline void hash_secret_make(struct hash_secret *secret, uint64_t seed)
{
    secret->seed = seed;
    XXH3_initCustomSecret_scalar(secret->bytes, seed);
}

#ifdef XXH_DISPATCH_AVX2
static __attribute__((target("avx2"), noinline, unused)) uint64_t xxh3_64_secret_wide(const void *bytes, size_t length, const uint8_t *secret)
{
    return XXH3_hashLong_64b_internal(bytes, length, secret, XXH_SECRET_DEFAULT_SIZE, XXH3_accumulate_avx2, XXH3_scrambleAcc_avx2);
}
#endif

/* xxh3_64_seeded of the secret's seed. */
static inline uint64_t xxh3_64_secret(const void *bytes, size_t length, const struct hash_secret *secret)
{
    if (length <= XXH3_MIDSIZE_MAX)
        return XXH3_64bits_withSeed(bytes, length, secret->seed);
#ifdef XXH_DISPATCH_AVX2
    if (__builtin_cpu_supports("avx2"))
        return xxh3_64_secret_wide(bytes, length, secret->bytes);
#endif
    return XXH3_hashLong_64b_internal(bytes, length, secret->bytes, XXH_SECRET_DEFAULT_SIZE, XXH3_accumulate, XXH3_scrambleAcc);
}

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

/* xxh3_64 of bytes that are being written: what is there is hashed while it is in the cache. XXH3's own loop, by blocks of a KiB; without AVX2, or
 * where there are few, all is hashed at the end. */
#define HASH_BLOCK_BYTES (XXH_STRIPE_LEN * ((sizeof(XXH3_kSecret) - XXH_STRIPE_LEN) / XXH_SECRET_CONSUME_RATE))

struct hash_growing {
    _Alignas(32) xxh_u64 acc[XXH_ACC_NB]; /* what AVX2 asks, whatever the compiler builds for */
    size_t length, done; /* of all bytes; of those, what is in `acc` */
    int wide;
};

static inline void hash_growing_begin(struct hash_growing *hash, size_t length)
{
    const xxh_u64 acc[XXH_ACC_NB] = XXH3_INIT_ACC;
    memcpy(hash->acc, acc, sizeof acc);
    hash->length = length;
    hash->done = 0;
#ifdef XXH_DISPATCH_AVX2
    hash->wide = length >= HASH_WIDE_BYTES_MIN && __builtin_cpu_supports("avx2");
#else
    hash->wide = 0;
#endif
}

#ifdef XXH_DISPATCH_AVX2
static __attribute__((target("avx2"), noinline, unused)) void hash_growing_add_wide(struct hash_growing *hash, const uint8_t *bytes, size_t there)
{
    const size_t end = (there < hash->length ? there : hash->length - 1) / HASH_BLOCK_BYTES * HASH_BLOCK_BYTES; /* never the last byte */
    size_t at = hash->done;
    _Alignas(32) xxh_u64 acc[XXH_ACC_NB]; /* in registers: through the pointer each stripe would wait for the one before */
    memcpy(acc, hash->acc, sizeof acc);
    for (; at < end; at += HASH_BLOCK_BYTES) {
        XXH3_accumulate_avx2(acc, bytes + at, XXH3_kSecret, HASH_BLOCK_BYTES / XXH_STRIPE_LEN);
        XXH3_scrambleAcc_avx2(acc, XXH3_kSecret + sizeof(XXH3_kSecret) - XXH_STRIPE_LEN);
    }
    memcpy(hash->acc, acc, sizeof acc);
    hash->done = at;
}

static __attribute__((target("avx2"), noinline, unused)) uint64_t hash_growing_end_wide(struct hash_growing *hash, const uint8_t *bytes)
{
    hash_growing_add_wide(hash, bytes, hash->length);
    XXH3_accumulate_avx2(hash->acc, bytes + hash->done, XXH3_kSecret, (hash->length - 1 - hash->done) / XXH_STRIPE_LEN);
    XXH3_accumulate_avx2(hash->acc, bytes + hash->length - XXH_STRIPE_LEN,
                         XXH3_kSecret + sizeof(XXH3_kSecret) - XXH_STRIPE_LEN - XXH_SECRET_LASTACC_START, 1);
    return XXH3_mergeAccs(hash->acc, XXH3_kSecret + XXH_SECRET_MERGEACCS_START, (xxh_u64)hash->length * XXH_PRIME64_1);
}
#endif

/* The first `there` bytes are written. */
static inline void hash_growing_add(struct hash_growing *hash, const uint8_t *bytes, size_t there)
{
#ifdef XXH_DISPATCH_AVX2
    if (hash->wide)
        hash_growing_add_wide(hash, bytes, there);
#else
    (void)hash, (void)bytes, (void)there;
#endif
}

static inline uint64_t hash_growing_end(struct hash_growing *hash, const uint8_t *bytes)
{
#ifdef XXH_DISPATCH_AVX2
    if (hash->wide)
        return hash_growing_end_wide(hash, bytes);
#endif
    return xxh3_64(bytes, hash->length);
}

#endif
