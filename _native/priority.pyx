"""The effective priority of a topic, in integers (see priority.pxd)."""

from topicsd._native.layout cimport TOPIC_AUTO_PRIORITY, TOPIC_HAS_PRIORITY

# 2^32 * 2^(-n/64), n = 0..64
cdef uint64_t[65] POWERS = [
    4294967296, 4248701965, 4202935003, 4157661043, 4112874773, 4068570940, 4024744348, 3981389855, 3938502376, 3896076880, 3854108391,
    3812591987, 3771522796, 3730896002, 3690706840, 3650950594, 3611622603, 3572718252, 3534232978, 3496162267, 3458501653, 3421246719,
    3384393094, 3347936457, 3311872529, 3276197082, 3240905930, 3205994934, 3171459999, 3137297074, 3103502151, 3070071267, 3037000500,
    3004285971, 2971923842, 2939910317, 2908241642, 2876914102, 2845924021, 2815267765, 2784941738, 2754942382, 2725266179, 2695909648,
    2666869345, 2638141863, 2609723834, 2581611923, 2553802834, 2526293303, 2499080105, 2472160047, 2445529972, 2419186755, 2393127307,
    2367348571, 2341847524, 2316621173, 2291666561, 2266980759, 2242560872, 2218404036, 2194507417, 2170868212, 2147483648,
]


cdef uint64_t halved(uint64_t value, uint64_t elapsed_ms) noexcept nogil:
    """`value` (below 2^31) times 2^(-elapsed / half life), rounded to the nearest integer."""
    cdef uint64_t steps, fraction, below, power, shift
    if elapsed_ms >= AUTO_FLOOR_MS:
        return 0
    steps = (elapsed_ms << 22) // HALF_LIFE_MS       # in 64ths of a half life, 16 bits of fraction
    fraction = steps & 0xFFFF
    steps >>= 16
    power = POWERS[steps & 63]
    below = POWERS[(steps & 63) + 1]
    power -= ((power - below) * fraction) >> 16
    shift = 32 + (steps >> 6)
    return (value * power + (<uint64_t>1 << (shift - 1))) >> shift


cdef int32_t effective_priority(const topic_config *config, uint64_t last_read_ms, uint64_t now_ms) noexcept nogil:
    if config.flags & TOPIC_HAS_PRIORITY:
        return min(max(config.priority, -PRIORITY_MAX), PRIORITY_MAX)
    if not config.flags & TOPIC_AUTO_PRIORITY or last_read_ms == 0:
        return 0
    return <int32_t>halved(AUTO_MAX, now_ms - last_read_ms if now_ms > last_read_ms else 0)


def priority_of(priority, bint auto_priority, uint64_t last_read_ms, uint64_t now_ms):
    """Return the effective priority of a topic with this config (`priority` None: not set), last read at `last_read_ms` (0: never). D §3.1."""
    cdef topic_config config
    config.flags = (TOPIC_AUTO_PRIORITY if auto_priority else 0) | (TOPIC_HAS_PRIORITY if priority is not None else 0)
    config.priority = priority if priority is not None else 0
    return effective_priority(&config, last_read_ms, now_ms)
