/* XXH3 for Cython: the vendored single header, inlined, without its streaming half. */
#ifndef TOPICSD_HASH_H
#define TOPICSD_HASH_H

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#ifndef XXH_NO_STREAM
#define XXH_NO_STREAM
#endif
#include "xxhash.h"

#include <stddef.h>
#include <stdint.h>

static inline uint64_t xxh3_64(const void *bytes, size_t length) { return XXH3_64bits(bytes, length); }

static inline uint64_t xxh3_64_seeded(const void *bytes, size_t length, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes, length, seed);
}

#endif
