/* Walks the objects of our own envelope (root, record, meta, config): knows their members, finds duplicates, keeps the first
 * complaint and goes on, because a JSON error further on wins over it.
 */
#ifndef TOPICSD_SCAN_OBJECT_H
#define TOPICSD_SCAN_OBJECT_H

#include <stdlib.h>

#include "json_scan.h"
#include "scan_impl.h"
#include "scan_text.h"

static int topicsd_path; /* enum json_path; tests only */

struct scan_name { /* canonical, so that d\u0061ta is data */
    const uint8_t *at, *raw;
    uint32_t bytes, raw_bytes;
};

struct scan {
    struct json_scanner json;
    struct scan_error *error;
    int64_t record;          /* index of the record that is being read, or -1 */
    const char *inside;      /* the member whose object is being read, or NULL */
    struct scan_name *names; /* unknown members of the open envelope objects, as a stack */
    uint32_t name_count, name_room;
    uint8_t *arena;          /* canonical forms of escaped names; as large as the body, so it is never full and never moves */
    uint32_t arena_bytes;
    const void *limits;
    void *request;           /* what the reader fills */
    int refused;             /* too long: not scanned at all */
    struct scan_error ignored; /* complaints after the first */
};

struct member {
    struct scan_name name;
    const uint8_t *value;
};

struct known {
    const char *name;
    uint32_t bytes;
    uint64_t word; /* "name": as eight bytes, for a short one that may stand in each record; 0: none */
};
#define KNOWN(text) {text, sizeof(text) - 1, 0}
#define LETTER(c, at) ((uint64_t)(uint8_t)(c) << 8 * (at))
#define KNOWN_3(a, b, c) {(const char[]){a, b, c, 0}, 3, LETTER('"', 0) | LETTER(a, 1) | LETTER(b, 2) | LETTER(c, 3) | LETTER('"', 4) | LETTER(':', 5)}
#define KNOWN_4(a, b, c, d) \
    {(const char[]){a, b, c, d, 0}, 4, \
     LETTER('"', 0) | LETTER(a, 1) | LETTER(b, 2) | LETTER(c, 3) | LETTER(d, 4) | LETTER('"', 5) | LETTER(':', 6)}

/* Reads the value of a member (`which` is its index in the table, -1 when it is unknown) and returns the place behind it. */
typedef const uint8_t *(*member_reader)(struct scan *c, int which, const struct member *m);

/* ---- complaints ------------------------------------------------------------------------------------------------------- */

static __attribute__((noinline, cold)) struct scan_error *scan_complain(struct scan *c, int kind, const char *member, const char *wanted)
{
    struct scan_error *error = c->error->kind ? &c->ignored : c->error;
    memset(error, 0, sizeof *error);
    error->kind = kind;
    error->record = c->record;
    error->member = member;
    error->wanted = wanted;
    return error;
}

static void scan_complain_limit(struct scan *c, const char *member, const char *unit, uint64_t limit, uint64_t actual)
{
    struct scan_error *error = scan_complain(c, SCAN_LIMIT, member, unit);
    error->limit = limit;
    error->actual = actual;
}

static void scan_complain_name(struct scan *c, int kind, const struct scan_name *name, const char *wanted)
{
    struct scan_error *error = scan_complain(c, kind, c->inside, wanted);
    error->named = 1;
    error->name_at = (uint32_t)(name->raw - c->json.begin);
    error->name_bytes = name->raw_bytes;
}

/* ---- members ---------------------------------------------------------------------------------------------------------- */

static void scan_decode_name(struct scan *c, struct scan_name *name)
{
    if (!c->arena && !(c->arena = malloc((size_t)(c->json.end - c->json.begin)))) {
        scan_complain(c, SCAN_MEMORY, NULL, NULL);
        return;
    }
    name->at = c->arena + c->arena_bytes;
    name->bytes = text_canonical(name->raw, name->raw + name->raw_bytes, c->arena + c->arena_bytes).stored;
    c->arena_bytes += name->bytes;
}

static inline int scan_find(const struct known *table, int count, const struct scan_name *name)
{
    for (int i = 0; i < count; i++)
        if (name->bytes == table[i].bytes && !memcmp(name->at, table[i].name, table[i].bytes))
            return i;
    return -1;
}

/* A short name that stands there as everybody writes it, its colon behind it, is one comparison; -1: read it. */
static inline int scan_find_short(const struct scan *c, const uint8_t *p, const struct known *table, int count, struct member *m)
{
    uint64_t eight;
    if (c->json.end - p < 9)
        return -1;
    memcpy(&eight, p, sizeof eight);
    for (int i = 0; i < count; i++)
        if (table[i].word && (eight & ~0ull >> 8 * (5 - table[i].bytes)) == table[i].word) {
            m->name.at = m->name.raw = p + 1;
            m->name.bytes = m->name.raw_bytes = table[i].bytes;
            m->value = json_space(&c->json, p + table[i].bytes + 3);
            return m->value == c->json.end ? -1 : i;
        }
    return -1;
}

/* `*at` stands behind '{' or behind a value. 1: a member, *which of the table or -1; 0: the object is closed and *at behind it; -1: wrong. */
static inline int scan_step(struct scan *c, const uint8_t **at, const struct known *table, int count, struct member *m, int *which, int first)
{
    struct json_scanner *s = &c->json;
    const uint8_t *p = json_space(s, *at), *close = NULL;
    int escaped = 0;
    if (p < s->end && *p == '}') {
        *at = p + 1;
        return 0;
    }
    if (!first) {
        if (p == s->end || *p != ',') {
            json_fail(s, p, JSON_UNEXPECTED);
            return -1;
        }
        p = json_space(s, p + 1);
    }
    if (JSON_LIKELY((*which = scan_find_short(c, p, table, count, m)) >= 0))
        return 1;
    if (!(m->value = json_name(s, p, &close, &escaped)))
        return -1;
    if (m->value == s->end) { /* so that no reader of a value need look whether there is one */
        json_fail(s, s->end, JSON_UNEXPECTED);
        return -1;
    }
    m->name.at = m->name.raw = p + 1;
    m->name.bytes = m->name.raw_bytes = (uint32_t)(close - (p + 1));
    if (JSON_UNLIKELY(escaped))
        scan_decode_name(c, &m->name);
    *which = scan_find(table, count, &m->name);
    return 1;
}

static void scan_remember(struct scan *c, const struct scan_name *name, uint32_t base)
{
    if (c->name_count - base >= SCAN_NAMES_MAX) {
        if (!c->error->kind)
            scan_complain_limit(c, c->inside, "members", SCAN_NAMES_MAX, SCAN_NAMES_MAX + 1);
        return;
    }
    if (c->name_count == c->name_room) {
        uint32_t room = c->name_room ? 2 * c->name_room : 16;
        struct scan_name *names = realloc(c->names, room * sizeof *names);
        if (!names) {
            scan_complain(c, SCAN_MEMORY, NULL, NULL);
            return;
        }
        c->names = names;
        c->name_room = room;
    }
    c->names[c->name_count++] = *name;
}

static int scan_compare_names(const void *left, const void *right)
{
    const struct scan_name *a = left, *b = right;
    uint32_t shorter = a->bytes < b->bytes ? a->bytes : b->bytes;
    int order = memcmp(a->at, b->at, shorter);
    return order ? order : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

/* Complains of a name that stands twice among those from `base` on, and forgets them. Sorted when many: never quadratic. */
static void scan_forget(struct scan *c, uint32_t base)
{
    struct scan_name *names = c->names + base;
    uint32_t count = c->name_count - base;
    if (count > 16)
        qsort(names, count, sizeof *names, scan_compare_names);
    for (uint32_t i = 1; i < count && !c->error->kind; i++)
        for (uint32_t j = count > 16 ? i - 1 : 0; j < i; j++)
            if (names[i].bytes == names[j].bytes && !memcmp(names[i].at, names[j].at, names[i].bytes))
                scan_complain_name(c, SCAN_DUPLICATE, &names[i], NULL);
    c->name_count = base;
}

/* `p` stands at the '{' of the `depth`th container. Inlined, and its reader with it, into each caller. */
static inline __attribute__((always_inline)) const uint8_t *scan_object(
    struct scan *c, const uint8_t *p, uint32_t depth, const struct known *table, int count, member_reader reader)
{
    const uint32_t base = c->name_count;
    uint32_t seen = 0;
    struct member m;
    int more, which, first = 1;
    if (depth > c->json.depth_max)
        return json_fail(&c->json, p, JSON_DEPTH);
    p++;
    while ((more = scan_step(c, &p, table, count, &m, &which, first)) > 0) {
        first = 0;
        if (which < 0) {
            scan_remember(c, &m.name, base);
        } else if (seen >> which & 1) {
            scan_complain_name(c, SCAN_DUPLICATE, &m.name, NULL);
            if (!(p = json_value(&c->json, m.value, depth)))
                return NULL;
            continue;
        } else {
            seen |= 1u << which;
        }
        if (!(p = reader(c, which, &m)))
            return NULL;
    }
    if (more < 0)
        return NULL;
    if (JSON_UNLIKELY(c->name_count != base))
        scan_forget(c, base);
    return p;
}

/* ---- the root --------------------------------------------------------------------------------------------------------- */

static void scan_begin(struct scan *c, const uint8_t *body, size_t length, uint32_t max_depth, struct scan_error *error, void *request)
{
    memset(c, 0, sizeof *c);
    memset(error, 0, sizeof *error);
    error->record = -1;
    c->error = error;
    c->record = -1;
    c->request = request;
    json_begin(&c->json, body, length, max_depth, topicsd_path);
    if (length > SCAN_BODY_BYTES_MAX) {
        struct scan_error *told = scan_complain(c, SCAN_BATCH_TOO_LARGE, NULL, "bytes");
        told->limit = SCAN_BODY_BYTES_MAX;
        told->actual = length;
        c->refused = 1;
    }
}

/* Ends a scan: `p` is the place behind the root's value, or NULL. A JSON error wins over what was found before it. */
static int scan_end(struct scan *c, const uint8_t *p)
{
    if (p)
        p = json_finish(&c->json, p);
    if (!p && !c->refused && c->error->kind != SCAN_MEMORY) {
        memset(c->error, 0, sizeof *c->error);
        c->error->kind = SCAN_JSON;
        c->error->record = -1;
        c->error->why = c->json.why;
        c->error->offset = (uint64_t)(c->json.wrong - c->json.begin);
    }
    free(c->names);
    free(c->arena);
    return c->error->kind;
}

static inline __attribute__((always_inline)) const uint8_t *scan_root(
    struct scan *c, const struct known *table, int count, member_reader reader)
{
    const uint8_t *p;
    if (c->refused)
        return NULL;
    p = json_space(&c->json, c->json.begin);
    if (p < c->json.end && *p == '{')
        return scan_object(c, p, 1, table, count, reader);
    if ((p = json_value(&c->json, p, 0)))
        scan_complain(c, SCAN_TYPE, NULL, "an object");
    return p;
}

/* ---- values ----------------------------------------------------------------------------------------------------------- */

/* A valid value that begins with `n` is null, with `t` true, with `f` false. */
static inline int scan_is_null(const uint8_t *value) { return *value == 'n'; }

/* Digits alone: no sign, fraction or exponent. 0 when it is one, with a value of at most 2^64 - 1. */
static int scan_unsigned(const uint8_t *p, const uint8_t *end, uint64_t *out)
{
    uint64_t value = 0;
    for (; p < end; p++) {
        if (*p < '0' || *p > '9')
            return -1;
        if (__builtin_mul_overflow(value, 10u, &value) || __builtin_add_overflow(value, (uint64_t)(*p - '0'), &value))
            return -1;
    }
    *out = value;
    return 0;
}

struct text { /* a string's inside */
    const uint8_t *at;
    uint32_t bytes;
    int escaped;
    struct text_size size; /* `characters` only when it was escaped */
};

/* `value` stands at a quote. Returns the place behind the closing one. */
static inline const uint8_t *scan_text(struct scan *c, const uint8_t *value, struct text *out)
{
    const uint8_t *close;
    out->escaped = 0;
    if (!(close = json_string(&c->json, value + 1, &out->escaped)))
        return NULL;
    out->at = value + 1;
    out->bytes = (uint32_t)(close - out->at);
    if (JSON_UNLIKELY(out->escaped))
        out->size = text_canonical(out->at, close, NULL);
    else
        out->size.stored = out->size.decoded = out->bytes;
    return close + 1;
}

static uint32_t scan_copy_text(const struct text *text, uint8_t *out)
{
    if (text->escaped)
        text_canonical(text->at, text->at + text->bytes, out);
    else
        memcpy(out, text->at, text->bytes);
    return text->size.stored;
}

/* Reads true, false or null (which leaves *out alone); complains of anything else. */
static const uint8_t *scan_flag(struct scan *c, const struct member *m, uint32_t depth, const char *name, uint8_t *out)
{
    const uint8_t *p = json_value(&c->json, m->value, depth);
    if (!p)
        return NULL;
    if (*m->value == 't' || *m->value == 'f')
        *out = *m->value == 't';
    else if (!scan_is_null(m->value))
        scan_complain(c, SCAN_TYPE, name, "true or false");
    return p;
}

/* Reads an unsigned integer or null (which leaves *out alone); *given, when there is one, tells them apart. */
static const uint8_t *scan_number(struct scan *c, const struct member *m, uint32_t depth, const char *name, uint64_t *out, uint8_t *given)
{
    const uint8_t *p = json_value(&c->json, m->value, depth);
    if (!p || scan_is_null(m->value))
        return p;
    if (scan_unsigned(m->value, p, out))
        scan_complain(c, SCAN_TYPE, name, "an unsigned integer below 2^64");
    else if (given)
        *given = 1;
    return p;
}

#endif
