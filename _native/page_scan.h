/* A page of diff (JSON text, from a server that is not believed) as records: where each member stands, nothing copied, no allocation. */
#ifndef TOPICSD_PAGE_SCAN_H
#define TOPICSD_PAGE_SCAN_H

#include "json_scan.h"

enum { PAGE_RECORD = 1, PAGE_END = 0, PAGE_BAD = -200 };

struct page_scan {
    struct json_scanner text;
    const uint8_t *at;                /* the next record, or the bracket behind the last one */
    const uint8_t *records[2];        /* the array, brackets included */
};

struct page_record { /* strings without their quotes; NULL: absent */
    uint64_t seq, ts;
    const uint8_t *node[2], *tag[2], *meta[2], *data[2];
};

static inline int page_name_is(const uint8_t *name, const uint8_t *close, const char *wanted)
{
    size_t bytes = strlen(wanted);
    return (size_t)(close - name) == bytes && memcmp(name, wanted, bytes) == 0;
}

/* The next member of the object that *at stands in (behind its brace at first). 1: name and value are set, 0: the object ended, *at stands behind it. */
static int page_member(struct json_scanner *text, const uint8_t **at, uint32_t depth, const uint8_t *name[2], const uint8_t *value[2])
{
    const uint8_t *p = json_space(text, *at);
    int escaped;
    if (p < text->end && *p == ',')
        p = json_space(text, p + 1);
    if (p < text->end && *p == '}') {
        *at = p + 1;
        return 0;
    }
    if (p >= text->end || *p != '"')
        return PAGE_BAD;
    name[0] = p + 1;
    p = json_name(text, p, &name[1], &escaped);
    if (p == NULL)
        return PAGE_BAD;
    value[0] = p;
    p = json_value(text, p, depth);
    if (p == NULL)
        return PAGE_BAD;
    value[1] = p;
    *at = p;
    return 1;
}

/* The whole body is validated here. 0 or PAGE_BAD. */
static int page_begin(struct page_scan *page, const uint8_t *body, uint64_t bytes)
{
    struct json_scanner *text = &page->text;
    const uint8_t *p, *end, *name[2], *value[2];
    int more;
    memset(page, 0, sizeof *page);
    json_begin(text, body, bytes, JSON_DEPTH_MAX, JSON_WIDEST);
    p = json_space(text, body);
    if (p >= text->end || *p != '{')
        return PAGE_BAD;
    end = json_value(text, p, 0);
    if (end == NULL || json_finish(text, end) == NULL)
        return PAGE_BAD;
    for (p++; (more = page_member(text, &p, 1, name, value)) > 0;) {
        if (page_name_is(name[0], name[1], "records") && *value[0] == '[') {
            page->records[0] = value[0];
            page->records[1] = value[1];
        }
    }
    if (more < 0 || page->records[0] == NULL)
        return PAGE_BAD;
    page->at = page->records[0] + 1;
    return 0;
}

static int page_number(const uint8_t *const value[2], uint64_t *out)
{
    *out = 0;
    for (const uint8_t *p = value[0]; p < value[1]; p++) {
        if (*p < '0' || *p > '9' || *out >= (uint64_t)INT64_MAX / 10)
            return PAGE_BAD;
        *out = *out * 10 + (uint64_t)(*p - '0');
    }
    return 0;
}

static inline int page_string(const uint8_t *const value[2], const uint8_t *out[2])
{
    if (value[1] - value[0] < 2 || *value[0] != '"')
        return PAGE_BAD;
    out[0] = value[0] + 1;
    out[1] = value[1] - 1;
    return 0;
}

/* The next record. PAGE_RECORD, PAGE_END or PAGE_BAD. Unknown members are passed over; one of another type than A §3 says is bad. */
static int page_next(struct page_scan *page, struct page_record *record)
{
    struct json_scanner *text = &page->text;
    const uint8_t *p = json_space(text, page->at), *name[2], *value[2];
    int more, failure = 0;
    memset(record, 0, sizeof *record);
    if (p < text->end && *p == ',')
        p = json_space(text, p + 1);
    if (p >= text->end)
        return PAGE_BAD;
    if (*p == ']')
        return PAGE_END;
    if (*p != '{')
        return PAGE_BAD;
    for (p++; failure == 0 && (more = page_member(text, &p, 3, name, value)) > 0;) {
        if (page_name_is(name[0], name[1], "data")) {
            record->data[0] = value[0];
            record->data[1] = value[1];
        } else if (page_name_is(name[0], name[1], "meta")) {
            if (*value[0] == '{') {
                record->meta[0] = value[0];
                record->meta[1] = value[1];
            } else if (*value[0] != 'n') {
                failure = PAGE_BAD;
            }
        } else if (page_name_is(name[0], name[1], "$seq")) {
            failure = page_number(value, &record->seq);
        } else if (page_name_is(name[0], name[1], "$ts")) {
            failure = page_number(value, &record->ts);
        } else if (page_name_is(name[0], name[1], "$node")) {
            failure = *value[0] == 'n' ? 0 : page_string(value, record->node);
        } else if (page_name_is(name[0], name[1], "$tag")) {
            failure = *value[0] == 'n' ? 0 : page_string(value, record->tag);
        }
    }
    if (failure || more < 0 || record->seq == 0 || record->data[0] == NULL)
        return PAGE_BAD;
    page->at = p;
    return PAGE_RECORD;
}

#endif
