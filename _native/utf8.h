/* One code point as UTF-8 (RFC 3629). */
#ifndef TOPICSD_UTF8_H
#define TOPICSD_UTF8_H

#include <stdint.h>

/* Writes `code`, no surrogate and at most 0x10FFFF, in 1 to 4 bytes; returns how many. */
static inline uint32_t utf8_put(uint8_t *out, uint32_t code)
{
    if (code < 0x80) {
        out[0] = (uint8_t)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (uint8_t)(0xC0 | code >> 6);
        out[1] = (uint8_t)(0x80 | (code & 63));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (uint8_t)(0xE0 | code >> 12);
        out[1] = (uint8_t)(0x80 | (code >> 6 & 63));
        out[2] = (uint8_t)(0x80 | (code & 63));
        return 3;
    }
    out[0] = (uint8_t)(0xF0 | code >> 18);
    out[1] = (uint8_t)(0x80 | (code >> 12 & 63));
    out[2] = (uint8_t)(0x80 | (code >> 6 & 63));
    out[3] = (uint8_t)(0x80 | (code & 63));
    return 4;
}

#endif
