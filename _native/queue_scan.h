/* The bodies of claim, ack, nack and extend as clients write them: {"node": "w1", "max": 8}, {"node": "w1", "seqs": [1, 2], "lease_ids": ["lease_1f"]}.
 *
 * What is read here is read as Falcon reads it. Everything else (escapes, text beyond ASCII, other members, one twice, wrong types, bounds) is left
 * to Falcon: QUEUE_SCAN_OTHER. Nothing is kept but what `out` has; its node points into the body.
 */
#ifndef TOPICSD_QUEUE_SCAN_H
#define TOPICSD_QUEUE_SCAN_H

#include <stdint.h>
#include <string.h>

#define QUEUE_SEQS_MAX 1000u
#define QUEUE_SCAN_OK 0
#define QUEUE_SCAN_OTHER 1

enum queue_member { MEMBER_NODE = 1, MEMBER_MAX = 2, MEMBER_LEASE_MS = 4, MEMBER_DELAY_MS = 8, MEMBER_SEQS = 16, MEMBER_LEASE_IDS = 32 };

struct queue_request {
    const uint8_t *node;
    uint32_t node_bytes, has; /* enum queue_member */
    uint64_t max, lease_ms, delay_ms;
    uint32_t count, ids;
    uint64_t seqs[QUEUE_SEQS_MAX];
    uint64_t tokens[QUEUE_SEQS_MAX]; /* 0: an id that is none of ours */
};

static inline const uint8_t *queue_space(const uint8_t *at, const uint8_t *end)
{
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r'))
        at++;
    return at;
}

/* A plain string; its inside in `text`. NULL: another one. */
static inline const uint8_t *queue_string(const uint8_t *at, const uint8_t *end, const uint8_t **text, uint32_t *bytes)
{
    const uint8_t *first = at + 1;
    if (at >= end || *at != '"')
        return NULL;
    for (at = first; at < end && *at != '"'; at++)
        if (*at < 0x20 || *at > 0x7E || *at == '\\')
            return NULL;
    if (at >= end || at - first > 65535)
        return NULL;
    *text = first;
    *bytes = (uint32_t)(at - first);
    return at + 1;
}

/* An unsigned integer of at most 18 digits. */
static inline const uint8_t *queue_number(const uint8_t *at, const uint8_t *end, uint64_t *value)
{
    const uint8_t *first = at;
    *value = 0;
    for (; at < end && *at >= '0' && *at <= '9'; at++) {
        if (at - first == 18)
            return NULL;
        *value = *value * 10 + (uint64_t)(*at - '0');
    }
    if (at == first || (*first == '0' && at - first > 1) || (at < end && (*at == '.' || *at == 'e' || *at == 'E')))
        return NULL;
    return at;
}

static inline uint64_t queue_token(const uint8_t *text, uint32_t bytes)
{
    uint64_t token = 0;
    if (bytes < 7 || bytes > 22 || memcmp(text, "lease_", 6) != 0)
        return 0;
    for (uint32_t place = 6; place < bytes; place++) {
        uint8_t each = text[place];
        if (each >= '0' && each <= '9')
            token = token << 4 | (uint64_t)(each - '0');
        else if (each >= 'a' && each <= 'f')
            token = token << 4 | (uint64_t)(each - 'a' + 10);
        else
            return 0;
    }
    return token;
}

/* An array of numbers or of lease ids. */
static inline const uint8_t *queue_array(const uint8_t *at, const uint8_t *end, int ids, uint64_t *out, uint32_t *count)
{
    const uint8_t *text;
    uint32_t bytes;
    *count = 0;
    if (at >= end || *at != '[')
        return NULL;
    at = queue_space(at + 1, end);
    if (at < end && *at == ']')
        return at + 1;
    while (*count < QUEUE_SEQS_MAX) {
        if (ids) {
            at = queue_string(at, end, &text, &bytes);
            if (at)
                out[*count] = queue_token(text, bytes);
        } else {
            at = queue_number(at, end, &out[*count]);
        }
        if (at == NULL)
            return NULL;
        ++*count;
        at = queue_space(at, end);
        if (at >= end)
            return NULL;
        if (*at == ']')
            return at + 1;
        if (*at != ',')
            return NULL;
        at = queue_space(at + 1, end);
    }
    return NULL;
}

static inline uint32_t queue_member_named(const uint8_t *text, uint32_t bytes)
{
    static const struct {
        const char *name;
        uint32_t bytes, member;
    } members[] = {{"node", 4, MEMBER_NODE},         {"max", 3, MEMBER_MAX},   {"lease_ms", 8, MEMBER_LEASE_MS},
                   {"delay_ms", 8, MEMBER_DELAY_MS}, {"seqs", 4, MEMBER_SEQS}, {"lease_ids", 9, MEMBER_LEASE_IDS}};
    for (uint32_t place = 0; place < sizeof(members) / sizeof(members[0]); place++)
        if (members[place].bytes == bytes && memcmp(members[place].name, text, bytes) == 0)
            return members[place].member;
    return 0;
}

static inline const uint8_t *queue_value(const uint8_t *at, const uint8_t *end, uint32_t member, struct queue_request *out)
{
    switch (member) {
    case MEMBER_NODE:
        return queue_string(at, end, &out->node, &out->node_bytes);
    case MEMBER_MAX:
        return queue_number(at, end, &out->max);
    case MEMBER_LEASE_MS:
        return queue_number(at, end, &out->lease_ms);
    case MEMBER_DELAY_MS:
        return queue_number(at, end, &out->delay_ms);
    case MEMBER_SEQS:
        return queue_array(at, end, 0, out->seqs, &out->count);
    case MEMBER_LEASE_IDS:
        return queue_array(at, end, 1, out->tokens, &out->ids);
    default:
        return NULL;
    }
}

static inline int queue_scan(const uint8_t *at, uint64_t size, struct queue_request *out)
{
    const uint8_t *end = at + size, *text;
    uint32_t bytes, member;
    out->has = out->count = out->ids = 0;
    at = queue_space(at, end);
    if (at >= end || *at != '{')
        return QUEUE_SCAN_OTHER;
    do {
        at = queue_string(queue_space(at + 1, end), end, &text, &bytes);
        if (at == NULL)
            return QUEUE_SCAN_OTHER;
        at = queue_space(at, end);
        member = queue_member_named(text, bytes);
        if (member == 0 || out->has & member || at >= end || *at != ':')
            return QUEUE_SCAN_OTHER;
        out->has |= member;
        at = queue_value(queue_space(at + 1, end), end, member, out);
        if (at == NULL)
            return QUEUE_SCAN_OTHER;
        at = queue_space(at, end);
    } while (at < end && *at == ',');
    if (at >= end || *at != '}' || queue_space(at + 1, end) != end || !(out->has & MEMBER_NODE) || out->node_bytes == 0)
        return QUEUE_SCAN_OTHER;
    return QUEUE_SCAN_OK;
}

#endif
