# XXH3-64: the checksum of frames, the hash of names, the hash that tells two bodies of one idempotency key apart.
# It is not keyed: nothing that an attacker chooses may rely on it to be rare.
from libc.stdint cimport uint64_t

cdef extern from "hash.h" nogil:
    uint64_t xxh3_64(const void *bytes, size_t length) noexcept                            # seed 0
    uint64_t xxh3_64_seeded(const void *bytes, size_t length, uint64_t seed) noexcept
    ctypedef struct hash_secret "struct hash_secret":
        uint64_t seed
    void hash_secret_make(hash_secret *secret, uint64_t seed) noexcept
    uint64_t xxh3_64_secret(const void *bytes, size_t length, const hash_secret *secret) noexcept          # xxh3_64_seeded of its seed
