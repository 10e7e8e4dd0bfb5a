/* The canonical form of a JSON string: what topicsd stores of tags, nodes and keys, without the quotes.
 *
 *   "  \  \b \f \n \r \t     as these two characters
 *   other control characters \u00xx, lowercase
 *   a lone surrogate escape  \udxxx, lowercase
 *   everything else          raw UTF-8
 *
 * Each character has one form, so equal bytes are equal strings and a prefix of bytes that ends between characters is a
 * prefix of the string. The form is never longer than the text that was sent.
 */
#ifndef TOPICSD_SCAN_TEXT_H
#define TOPICSD_SCAN_TEXT_H

#include "json_scan.h"
#include "utf8.h"

struct text_size {
    uint32_t stored;     /* canonical bytes */
    uint32_t decoded;    /* bytes of the decoded string in UTF-8 (a lone surrogate counts 3) */
    uint32_t characters;
};

static inline uint32_t text_hex4(const uint8_t *p)
{
    return (uint32_t)(json_hex(p[0]) << 12 | json_hex(p[1]) << 8 | json_hex(p[2]) << 4 | json_hex(p[3]));
}

/* `*at` stands behind the backslash of a valid escape; moves it behind the escape, or behind both halves of a pair. */
static uint32_t text_escape(const uint8_t **at, const uint8_t *end)
{
    const uint8_t *p = *at;
    uint32_t code, low;
    *at = p + 1;
    switch (*p) {
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'u': break;
    default: return *p;
    }
    code = text_hex4(p + 1);
    *at = p + 5;
    if (code >= 0xD800 && code <= 0xDBFF && end - p >= 11 && p[5] == '\\' && p[6] == 'u') {
        low = text_hex4(p + 7);
        if (low >= 0xDC00 && low <= 0xDFFF) {
            *at = p + 11;
            return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        }
    }
    return code;
}

static uint32_t text_put_hex(uint8_t *out, uint32_t code)
{
    static const char digits[] = "0123456789abcdef";
    out[0] = '\\';
    out[1] = 'u';
    for (int i = 0; i < 4; i++)
        out[2 + i] = (uint8_t)digits[code >> (12 - 4 * i) & 15];
    return 6;
}

/* Writes the canonical form of one character, at most 6 bytes; adds its decoded length to *decoded. */
static uint32_t text_put(uint8_t *out, uint32_t code, uint32_t *decoded)
{
    static const char shorts[] = "btn\0fr"; /* 8, 9, 10, 11, 12, 13 */
    if (code < 0x80) {
        *decoded += 1;
        if (code == '"' || code == '\\' || (code >= 8 && code <= 13 && code != 11)) {
            out[0] = '\\';
            out[1] = code < 0x20 ? (uint8_t)shorts[code - 8] : (uint8_t)code;
            return 2;
        }
        if (code < 0x20)
            return text_put_hex(out, code);
        out[0] = (uint8_t)code;
        return 1;
    }
    if (code >= 0xD800 && code <= 0xDFFF) {
        *decoded += 3;
        return text_put_hex(out, code);
    }
    uint32_t size = utf8_put(out, code);
    *decoded += size;
    return size;
}

/* Canonicalises the inside of a valid JSON string. `out` has room for `end - p` bytes, or is NULL: then it only measures. */
static struct text_size text_canonical(const uint8_t *p, const uint8_t *end, uint8_t *out)
{
    struct text_size size = {0, 0, 0};
    uint8_t nowhere[6];
    while (p < end) {
        if (*p != '\\') {
            if (out)
                out[size.stored] = *p;
            size.stored++;
            size.decoded++;
            size.characters += (*p++ & 0xC0) != 0x80;
            continue;
        }
        p++;
        size.stored += text_put(out ? out + size.stored : nowhere, text_escape(&p, end), &size.decoded);
        size.characters++;
    }
    return size;
}

#endif
