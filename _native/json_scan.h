/* JSON text in one pass: RFC 8259 exactly, strict UTF-8, a bounded depth, no recursion, no allocation, no copy.
 *
 * Every function takes a place `p` and returns the place behind what it read, or NULL after it has set `wrong` and `why` in the
 * scanner. `wrong` is the first byte that no valid text could have there (the end, when the text breaks off): the text before it
 * is the beginning of a valid one.
 *
 * Nothing reads at or past `end`: 16 bytes are loaded only below `vector_end`, 64 only below `block_end` and `wide_end`. A scanner
 * whose vector_end is its begin takes the portable path (so does a build without SSE2, or with TOPICSD_SCALAR), one whose wide_end is
 * its begin does without AVX2 (which is asked of the machine, not of the compiler): tests run all three.
 *
 * Where strings are short, several lie in one block of 64 bytes: what stops a string is looked for once a block and kept as bits
 * (`stops`), so that the next string's end is a shift away, not a load, a comparison and a branch on its length.
 */
#ifndef TOPICSD_JSON_SCAN_H
#define TOPICSD_JSON_SCAN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__) && !defined(TOPICSD_SCALAR)
#include <immintrin.h>
#define JSON_SSE2 1
#endif

enum json_path { JSON_WIDEST = 0, JSON_PORTABLE = 1, JSON_NARROW = 2 }; /* NARROW: SSE2, not AVX2 */

#define JSON_DEPTH_MAX 128u /* the kinds of open containers are the bits of one unsigned __int128 */

enum json_why {
    JSON_FINE = 0,
    JSON_UNEXPECTED = 1, /* a byte that cannot stand there, or the end */
    JSON_CONTROL = 2,    /* a control character inside a string */
    JSON_ESCAPE = 3,     /* a bad escape */
    JSON_UTF8 = 4,       /* not UTF-8 */
    JSON_DEPTH = 5,      /* too deep */
    JSON_TRAILING = 6,   /* text behind the value */
};

struct json_scanner {
    const uint8_t *begin, *end, *vector_end, *block_end, *wide_end;
    uint64_t stops;       /* bit n: block[n] is a quote, a backslash, a control character or not ASCII */
    const uint8_t *block; /* NULL: none yet */
    const uint8_t *wrong;
    int why;
    uint32_t depth_max;
};

#define JSON_LIKELY(x) __builtin_expect(!!(x), 1)
#define JSON_UNLIKELY(x) __builtin_expect(!!(x), 0)

static inline void json_begin(struct json_scanner *s, const uint8_t *text, size_t length, uint32_t depth_max, int path)
{
    s->begin = text;
    s->end = text + length;
    s->vector_end = path == JSON_PORTABLE || length < 16 ? text : text + length - 15;
#ifdef JSON_SSE2
    s->wide_end = path != JSON_WIDEST || length < 64 || !__builtin_cpu_supports("avx2") ? text : text + length - 63;
#else
    s->wide_end = text;
#endif
    s->block_end = path == JSON_PORTABLE || length < 64 ? text : text + length - 63;
    s->block = NULL;
    s->stops = 0;
    s->wrong = NULL;
    s->why = JSON_FINE;
    s->depth_max = depth_max < JSON_DEPTH_MAX ? depth_max : JSON_DEPTH_MAX;
}

static __attribute__((noinline, cold)) const uint8_t *json_fail(struct json_scanner *s, const uint8_t *p, int why)
{
    s->wrong = p;
    s->why = why;
    return NULL;
}

/* ---- whitespace ------------------------------------------------------------------------------------------------------ */

static inline int json_is_space(uint8_t c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static __attribute__((noinline)) const uint8_t *json_space_run(const struct json_scanner *s, const uint8_t *p)
{
    /* one space or a short indent is common, long runs are not */
    for (int i = 0; i < 4; i++, p++)
        if (p == s->end || !json_is_space(*p))
            return p;
#ifdef JSON_SSE2
    while (p < s->vector_end) {
        __m128i block = _mm_loadu_si128((const __m128i *)p);
        __m128i space = _mm_or_si128(_mm_cmpeq_epi8(block, _mm_set1_epi8(' ')), _mm_cmpeq_epi8(block, _mm_set1_epi8('\n')));
        space = _mm_or_si128(space, _mm_cmpeq_epi8(block, _mm_set1_epi8('\r')));
        space = _mm_or_si128(space, _mm_cmpeq_epi8(block, _mm_set1_epi8('\t')));
        unsigned other = ~(unsigned)_mm_movemask_epi8(space) & 0xFFFFu;
        if (other)
            return p + __builtin_ctz(other);
        p += 16;
    }
#endif
    while (p < s->end && json_is_space(*p))
        p++;
    return p;
}

/* Never fails: returns `end` when nothing but spaces is left. */
static inline const uint8_t *json_space(const struct json_scanner *s, const uint8_t *p)
{
    return JSON_LIKELY(p < s->end && *p > ' ') ? p : json_space_run(s, p);
}

/* ---- strings --------------------------------------------------------------------------------------------------------- */

static inline int json_hex(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* `p` stands behind the backslash. A lone surrogate escape is valid JSON. */
static const uint8_t *json_escape(struct json_scanner *s, const uint8_t *p)
{
    if (p == s->end)
        return json_fail(s, p, JSON_UNEXPECTED);
    switch (*p) {
    case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't':
        return p + 1;
    case 'u':
        for (int i = 1; i <= 4; i++) {
            if (p + i == s->end)
                return json_fail(s, p + i, JSON_UNEXPECTED);
            if (json_hex(p[i]) < 0)
                return json_fail(s, p + i, JSON_ESCAPE);
        }
        return p + 5;
    default:
        return json_fail(s, p, JSON_ESCAPE);
    }
}

static inline int json_continues(const struct json_scanner *s, const uint8_t *p) { return p < s->end && (*p & 0xC0) == 0x80; }

/* `p` stands at a byte >= 0x80. Table 3-7 of Unicode: no overlong form, no surrogate, nothing above U+10FFFF. Takes the
 * whole run of such characters, so that text in another script does not go back to the vector loop at each letter. */
static const uint8_t *json_utf8(struct json_scanner *s, const uint8_t *p)
{
    do {
        uint8_t lead = *p, low = 0x80, high = 0xBF;
        int more;
        if (lead >= 0xC2 && lead <= 0xDF) {
            more = 1;
        } else if ((lead & 0xF0) == 0xE0) {
            more = 2;
            low = lead == 0xE0 ? 0xA0 : low;
            high = lead == 0xED ? 0x9F : high;
        } else if (lead >= 0xF0 && lead <= 0xF4) {
            more = 3;
            low = lead == 0xF0 ? 0x90 : low;
            high = lead == 0xF4 ? 0x8F : high;
        } else {
            return json_fail(s, p, JSON_UTF8);
        }
        if (p + 1 < s->end && (p[1] < low || p[1] > high))
            return json_fail(s, p, JSON_UTF8);
        for (int i = 1; i <= more; i++)
            if (!json_continues(s, p + i))
                return p + i == s->end ? json_fail(s, s->end, JSON_UNEXPECTED) : json_fail(s, p, JSON_UTF8);
        p += more + 1;
    } while (p < s->end && *p >= 0x80);
    return p;
}

#ifdef JSON_SSE2
/* Pass over the plain characters of a long string: stops at another one, or less than 64 bytes before the end. */
static __attribute__((target("avx2"), noinline)) const uint8_t *json_run_wide(const uint8_t *p, const uint8_t *wide_end)
{
    const __m256i quote = _mm256_set1_epi8('"'), escape = _mm256_set1_epi8('\\'), space = _mm256_set1_epi8(0x20);
    for (; p < wide_end; p += 64) {
        __m256i low = _mm256_loadu_si256((const __m256i *)p), high = _mm256_loadu_si256((const __m256i *)(p + 32));
        __m256i stop_low = _mm256_or_si256(_mm256_cmpeq_epi8(low, quote), _mm256_cmpeq_epi8(low, escape));
        __m256i stop_high = _mm256_or_si256(_mm256_cmpeq_epi8(high, quote), _mm256_cmpeq_epi8(high, escape));
        stop_low = _mm256_or_si256(stop_low, _mm256_cmpgt_epi8(space, low)); /* signed, as below */
        stop_high = _mm256_or_si256(stop_high, _mm256_cmpgt_epi8(space, high));
        uint64_t mask = (uint32_t)_mm256_movemask_epi8(stop_low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(stop_high) << 32;
        if (mask)
            return p + __builtin_ctzll(mask);
    }
    return p;
}
#endif

#ifdef JSON_SSE2
static inline uint32_t json_stops(const uint8_t *p)
{
    __m128i block = _mm_loadu_si128((const __m128i *)p);
    __m128i stop = _mm_or_si128(_mm_cmpeq_epi8(block, _mm_set1_epi8('"')), _mm_cmpeq_epi8(block, _mm_set1_epi8('\\')));
    /* signed: below 0x20 are the control characters and every byte >= 0x80 */
    return (uint32_t)_mm_movemask_epi8(_mm_or_si128(stop, _mm_cmplt_epi8(block, _mm_set1_epi8(0x20))));
}
#endif

/* `p` stands behind the opening quote. Returns the closing quote; sets *escaped when there was an escape. */
static inline const uint8_t *json_string(struct json_scanner *s, const uint8_t *p, int *escaped)
{
    for (;;) {
#ifdef JSON_SSE2
        for (;;) {
            uint64_t ahead;
            if ((uintptr_t)p - (uintptr_t)s->block >= 64) {
                if (p >= s->block_end)
                    break;
                s->stops = json_stops(p) | (uint64_t)json_stops(p + 16) << 16 | (uint64_t)json_stops(p + 32) << 32 | (uint64_t)json_stops(p + 48) << 48;
                s->block = p;
            }
            if ((ahead = s->stops >> (p - s->block))) {
                p += __builtin_ctzll(ahead);
                goto stopped;
            }
            p = s->block + 64;
            if (p < s->wide_end)
                p = json_run_wide(p, s->wide_end);
        }
        while (p < s->vector_end) {
            uint32_t mask = json_stops(p);
            if (mask) {
                p += __builtin_ctz(mask);
                goto stopped;
            }
            p += 16;
        }
#endif
        while (p < s->end && *p != '"' && *p != '\\' && *p >= 0x20 && *p < 0x80)
            p++;
        if (p == s->end)
            return json_fail(s, p, JSON_UNEXPECTED);
#ifdef JSON_SSE2
    stopped:
#endif
        if (JSON_LIKELY(*p == '"'))
            return p;
        if (*p == '\\') {
            *escaped = 1;
            p = json_escape(s, p + 1);
        } else if (*p < 0x20) {
            return json_fail(s, p, JSON_CONTROL);
        } else {
            p = json_utf8(s, p);
        }
        if (!p)
            return NULL;
    }
}

/* ---- numbers and words ----------------------------------------------------------------------------------------------- */

static inline const uint8_t *json_digits(struct json_scanner *s, const uint8_t *p)
{
    if (p == s->end || *p < '0' || *p > '9')
        return json_fail(s, p, JSON_UNEXPECTED);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (s->end - p >= 8) { /* eight at once: a digit less '0' is below 10, so 0x76 more does not reach bit 7 */
        uint64_t eight, other;
        memcpy(&eight, p, sizeof eight);
        eight ^= 0x3030303030303030u;
        if ((other = (eight | (eight + 0x7676767676767676u)) & 0x8080808080808080u)) /* a carry only reaches what stands behind the first */
            return p + (__builtin_ctzll(other) >> 3);
        p += 8;
    }
#endif
    while (p < s->end && *p >= '0' && *p <= '9')
        p++;
    return p;
}

/* `p` stands at '-' or a digit. Of any size: nothing is converted. */
static inline const uint8_t *json_number(struct json_scanner *s, const uint8_t *p)
{
    if (*p == '-')
        p++;
    if (p < s->end && *p == '0')
        p++;
    else if (!(p = json_digits(s, p)))
        return NULL;
    if (p < s->end && *p == '.' && !(p = json_digits(s, p + 1)))
        return NULL;
    if (p < s->end && (*p | 0x20) == 'e') {
        p++;
        if (p < s->end && (*p == '+' || *p == '-'))
            p++;
        p = json_digits(s, p);
    }
    return p;
}

static inline const uint8_t *json_word(struct json_scanner *s, const uint8_t *p, const char *word)
{
    for (; *word; word++, p++)
        if (p == s->end || *p != (uint8_t)*word)
            return json_fail(s, p, JSON_UNEXPECTED);
    return p;
}

/* ---- any value ------------------------------------------------------------------------------------------------------- */

/* `p` stands at the quote of a member's name. Returns the first byte of its value; sets *close to the name's closing quote. */
static inline const uint8_t *json_name(struct json_scanner *s, const uint8_t *p, const uint8_t **close, int *escaped)
{
    if (p == s->end || *p != '"')
        return json_fail(s, p, JSON_UNEXPECTED);
    if (!(*close = json_string(s, p + 1, escaped)))
        return NULL;
    p = json_space(s, *close + 1);
    if (p == s->end || *p != ':')
        return json_fail(s, p, JSON_UNEXPECTED);
    return json_space(s, p + 1);
}

/* `p` stands at the first byte of a value that lies inside `depth` containers. Returns the byte behind the value. */
static const uint8_t *json_value(struct json_scanner *s, const uint8_t *p, uint32_t depth)
{
    const uint32_t outside = depth;
    unsigned __int128 outer = 0; /* bit 0: the container around this one is an object, bit 1: the one around that ... */
    int in_object = 0, escaped = 0;
    const uint8_t *close_quote;

value:
    if (p == s->end)
        return json_fail(s, p, JSON_UNEXPECTED);
    switch (*p) {
    case '"':
        if (!(p = json_string(s, p + 1, &escaped)))
            return NULL;
        p++;
        break;
    case '{':
    case '[':
        if (depth == s->depth_max)
            return json_fail(s, p, JSON_DEPTH);
        depth++;
        outer = outer << 1 | (unsigned)in_object;
        in_object = *p == '{';
        p = json_space(s, p + 1);
        if (p < s->end && *p == (in_object ? '}' : ']'))
            goto close;
        if (!in_object)
            goto value;
        goto name;
    case 't':
        p = json_word(s, p, "true");
        break;
    case 'f':
        p = json_word(s, p, "false");
        break;
    case 'n':
        p = json_word(s, p, "null");
        break;
    case '-': case '0': case '1': case '2': case '3': case '4': case '5': case '6': case '7': case '8': case '9':
        p = json_number(s, p);
        break;
    default:
        return json_fail(s, p, JSON_UNEXPECTED);
    }
    if (JSON_UNLIKELY(!p))
        return NULL;

behind:
    if (depth == outside)
        return p;
    p = json_space(s, p);
    if (p == s->end)
        return json_fail(s, p, JSON_UNEXPECTED);
    if (*p == ',') {
        p = json_space(s, p + 1);
        if (!in_object)
            goto value;
    name:
        if (!(p = json_name(s, p, &close_quote, &escaped)))
            return NULL;
        goto value;
    }
    if (*p != (in_object ? '}' : ']'))
        return json_fail(s, p, JSON_UNEXPECTED);
close:
    p++;
    depth--;
    in_object = (int)(outer & 1);
    outer >>= 1;
    goto behind;
}

/* Nothing but spaces may follow the root's value. */
static inline const uint8_t *json_finish(struct json_scanner *s, const uint8_t *p)
{
    p = json_space(s, p);
    return p == s->end ? p : json_fail(s, p, JSON_TRAILING);
}

#endif
