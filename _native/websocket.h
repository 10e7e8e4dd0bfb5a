/* The inner loops of RFC 6455: unmasking, and UTF-8 that may be cut anywhere (page of truth: websocket.pxd). */
#ifndef TOPICSD_WEBSOCKET_H
#define TOPICSD_WEBSOCKET_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Copy `bytes` payload bytes and take the mask off; `place` is how many of the frame's payload came before (section 5.3). */
static inline void ws_unmask(uint8_t *to, const uint8_t *from, size_t bytes, uint32_t mask, uint64_t place)
{
    uint32_t turn = (uint32_t)(place & 3u) * 8u;
    uint32_t key = turn ? (mask >> turn) | (mask << (32u - turn)) : mask; /* little-endian: byte 0 of the mask is the lowest */
    uint64_t wide = ((uint64_t)key << 32) | key;
    size_t n = 0;
    for (; n + 8 <= bytes; n += 8) {
        uint64_t word;
        memcpy(&word, from + n, 8);
        word ^= wide;
        memcpy(to + n, &word, 8);
    }
    for (; n < bytes; n++)
        to[n] = from[n] ^ (uint8_t)(key >> (8u * (n & 3u)));
}

struct ws_utf8 { /* zeroed: between characters */
    uint32_t need;       /* continuation bytes that are still to come */
    uint8_t low, high;   /* what the next one may be: overlong forms, surrogates and what is above U+10FFFF never get through */
};

/* Look at one piece more; 0 when no text can begin like this (Unicode 15, table 3-7). */
static inline int ws_utf8_feed(struct ws_utf8 *state, const uint8_t *at, size_t bytes)
{
    size_t n = 0;
    while (n < bytes) {
        if (state->need == 0) {
            uint64_t word;
            while (n + 8 <= bytes && (memcpy(&word, at + n, 8), (word & 0x8080808080808080ull) == 0))
                n += 8;
            if (n == bytes)
                break;
            uint8_t lead = at[n++];
            if (lead < 0x80)
                continue;
            state->low = 0x80;
            state->high = 0xBF;
            if (lead >= 0xC2 && lead <= 0xDF)
                state->need = 1;
            else if (lead >= 0xE0 && lead <= 0xEF) {
                state->need = 2;
                if (lead == 0xE0)
                    state->low = 0xA0;
                else if (lead == 0xED)
                    state->high = 0x9F;
            } else if (lead >= 0xF0 && lead <= 0xF4) {
                state->need = 3;
                if (lead == 0xF0)
                    state->low = 0x90;
                else if (lead == 0xF4)
                    state->high = 0x8F;
            } else
                return 0;
        } else {
            uint8_t byte = at[n++];
            if (byte < state->low || byte > state->high)
                return 0;
            state->low = 0x80;
            state->high = 0xBF;
            state->need--;
        }
    }
    return 1;
}

#endif
