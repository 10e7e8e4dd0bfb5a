/* The bodies of write, diff and delete, read in one pass; and the encoding of a write as the body of an append frame. */
#include "scan_impl.h"

#include "hash.h"
#include "layout.h"
#include "scan_object.h"
#include "scan_encode.h"

#define IN_ROOT 1u
#define IN_RECORDS 2u
#define IN_RECORD 3u
#define IN_META 4u

/* ---- write: a record --------------------------------------------------------------------------------------------------- */

enum { R_DATA, R_TAG, R_NODE, R_META, R_DELAY_MS, R_PRIORITY, R_COUNT };
static const struct known record_members[R_COUNT] = {
    KNOWN_4('d', 'a', 't', 'a'), KNOWN_3('t', 'a', 'g'), KNOWN_4('n', 'o', 'd', 'e'), KNOWN_4('m', 'e', 't', 'a'), KNOWN("delay_ms"), KNOWN("priority"),
};

struct writing { /* `request` of a scan of a write */
    struct write_request *write;
    struct record_span *span; /* the record that is being read, where it will stay: a copy would wait for what was just stored */
    struct record_span spare; /* for one there was no memory for */
    uint32_t has_data;
    uint32_t meta_keys;
    uint32_t records_seen; /* also those beyond max_records */
    uint8_t given_records;
};

static inline uint32_t place(const struct scan *c, const uint8_t *p) { return (uint32_t)(p - c->json.begin); }

static const uint8_t *read_meta_member(struct scan *c, int which, const struct member *m)
{
    struct writing *w = c->request;
    int escaped = 0;
    const uint8_t *p;
    (void)which;
    w->meta_keys++;
    if (*m->value == '"')
        return (p = json_string(&c->json, m->value + 1, &escaped)) ? p + 1 : NULL;
    if ((p = json_value(&c->json, m->value, IN_META)))
        scan_complain_name(c, SCAN_TYPE, &m->name, "a string");
    return p;
}

static const uint8_t *read_meta(struct scan *c, const uint8_t *value)
{
    struct writing *w = c->request;
    const struct write_limits *limits = c->limits;
    const uint8_t *p;
    if (*value != '{') {
        if ((p = json_value(&c->json, value, IN_RECORD)) && !scan_is_null(value))
            scan_complain(c, SCAN_TYPE, "meta", "an object of strings");
        return p;
    }
    w->meta_keys = 0;
    c->inside = "meta";
    p = scan_object(c, value, IN_META, NULL, 0, read_meta_member);
    c->inside = NULL;
    if (!p)
        return NULL;
    w->span->meta_at = place(c, value);
    w->span->meta_bytes = (uint32_t)(p - value);
    w->span->flags |= RECORD_META;
    if (w->meta_keys > limits->max_meta_keys)
        scan_complain_limit(c, "meta", "keys", limits->max_meta_keys, w->meta_keys);
    if (w->span->meta_bytes > limits->max_meta_bytes)
        scan_complain_limit(c, "meta", "bytes", limits->max_meta_bytes, w->span->meta_bytes);
    return p;
}

/* A tag or a node: a string of at most `limit` decoded bytes, or null. */
static const uint8_t *read_label(struct scan *c, const struct member *m, uint32_t depth, const char *name, uint32_t limit, struct record_span *span)
{
    int tag = name[0] == 't';
    struct text text;
    const uint8_t *p;
    if (*m->value != '"') {
        if ((p = json_value(&c->json, m->value, depth)) && !scan_is_null(m->value))
            scan_complain(c, SCAN_TYPE, name, "a string");
        return p;
    }
    if (!(p = scan_text(c, m->value, &text)))
        return NULL;
    limit = limit < SCAN_TEXT_BYTES_MAX ? limit : SCAN_TEXT_BYTES_MAX;
    if (text.size.decoded > limit) {
        scan_complain_limit(c, name, "bytes", limit, text.size.decoded);
    } else if (tag) {
        span->tag_at = place(c, text.at);
        span->tag_raw_bytes = text.bytes;
        span->tag_bytes = (uint16_t)text.size.stored;
        span->flags |= RECORD_TAG | (text.escaped ? RECORD_TAG_ESCAPED : 0);
    } else {
        span->node_at = place(c, text.at);
        span->node_raw_bytes = text.bytes;
        span->node_bytes = (uint16_t)text.size.stored;
        span->flags |= RECORD_NODE | (text.escaped ? RECORD_NODE_ESCAPED : 0);
    }
    return p;
}

static const uint8_t *read_priority(struct scan *c, const struct member *m, struct record_span *span)
{
    const uint8_t *p = json_value(&c->json, m->value, IN_RECORD), *digits = m->value + (*m->value == '-');
    uint64_t value;
    if (!p || scan_is_null(m->value))
        return p;
    if (scan_unsigned(digits, p, &value) || value > 1000)
        scan_complain(c, SCAN_TYPE, "priority", "an integer from -1000 to 1000");
    else
        span->priority = digits == m->value ? (int32_t)value : -(int32_t)value;
    return p;
}

static inline const uint8_t *read_record_member(struct scan *c, int which, const struct member *m)
{
    struct writing *w = c->request;
    const struct write_limits *limits = c->limits;
    const uint8_t *p;
    switch (which) {
    case R_DATA:
        if (!(p = json_value(&c->json, m->value, IN_RECORD)))
            return NULL;
        w->span->data_at = place(c, m->value);
        w->span->data_bytes = (uint32_t)(p - m->value);
        w->has_data = 1;
        return p;
    case R_TAG:
        return read_label(c, m, IN_RECORD, "tag", limits->max_tag_bytes, w->span);
    case R_NODE:
        return read_label(c, m, IN_RECORD, "node", limits->max_node_bytes, w->span);
    case R_META:
        return read_meta(c, m->value);
    case R_DELAY_MS:
        return scan_number(c, m, IN_RECORD, "delay_ms", &w->span->delay_ms, NULL);
    case R_PRIORITY:
        return read_priority(c, m, w->span);
    default:
        return json_value(&c->json, m->value, IN_RECORD);
    }
}

/* Where the next record's span goes. */
static inline struct record_span *next_span(struct scan *c, struct writing *w)
{
    struct write_request *write = w->write;
    if (JSON_UNLIKELY(write->count == write->room)) {
        uint32_t room = write->room ? 2 * write->room : 4;
        struct record_span *records = realloc(write->records, (size_t)room * sizeof *records);
        if (!records) {
            scan_complain(c, SCAN_MEMORY, NULL, NULL);
            return &w->spare;
        }
        write->records = records;
        write->room = room;
    }
    return &write->records[write->count];
}

static inline void measure(struct write_request *write, const struct record_span *record)
{
    const uint64_t payload = (uint64_t)record->data_bytes + record->meta_bytes + record->tag_bytes + node_of(write, record)->node_bytes;
    write->payload_bytes += payload;
    write->records_bytes += entry_bytes(record, payload);
}

static inline void keep_record(struct scan *c, struct writing *w)
{
    const struct write_limits *limits = c->limits;
    const uint64_t bytes = (uint64_t)w->span->data_bytes + w->span->meta_bytes;
    if (JSON_UNLIKELY(!w->has_data))
        scan_complain(c, SCAN_MISSING, "data", NULL);
    if (JSON_UNLIKELY(bytes > limits->max_record_bytes)) {
        struct scan_error *error = scan_complain(c, SCAN_RECORD_TOO_LARGE, NULL, "bytes of data and meta");
        error->limit = limits->max_record_bytes;
        error->actual = bytes;
    }
    if (JSON_UNLIKELY(w->span->delay_ms || w->span->priority))
        w->span->flags |= RECORD_EXT;
    measure(w->write, w->span);
    w->write->count += w->span != &w->spare;
}

static const uint8_t *read_record(struct scan *c, const uint8_t *p)
{
    struct writing *w = c->request;
    const struct write_limits *limits = c->limits;
    c->record = w->records_seen++;
    if (w->records_seen > limits->max_records)
        return json_value(&c->json, p, IN_RECORDS); /* the batch is refused: only its JSON still matters */
    if (p == c->json.end || *p != '{') {
        if ((p = json_value(&c->json, p, IN_RECORDS)))
            scan_complain(c, SCAN_TYPE, NULL, "an object");
        return p;
    }
    w->span = next_span(c, w);
    memset(w->span, 0, sizeof *w->span);
    w->has_data = 0;
    if ((p = scan_object(c, p, IN_RECORD, record_members, R_COUNT, read_record_member)))
        keep_record(c, w);
    return p;
}

/* ---- write: the root ----------------------------------------------------------------------------------------------------- */

enum { W_RECORDS, W_NODE, W_KEY, W_CREATE, W_CONFIG, W_BACKPRESSURE, W_COUNT };
static const struct known write_members[W_COUNT] = {
    KNOWN("records"), KNOWN("node"), KNOWN("idempotency_key"), KNOWN("create"), KNOWN("config"), KNOWN("disable_backpressure"),
};

static const uint8_t *read_records(struct scan *c, const uint8_t *p)
{
    struct writing *w = c->request;
    const struct write_limits *limits = c->limits;
    w->given_records = 1;
    if (*p != '[') {
        if ((p = json_value(&c->json, p, IN_ROOT)))
            scan_complain(c, SCAN_TYPE, "records", "an array of at least one record");
        return p;
    }
    if (IN_RECORDS > c->json.depth_max)
        return json_fail(&c->json, p, JSON_DEPTH);
    p = json_space(&c->json, p + 1);
    if (p < c->json.end && *p == ']') {
        scan_complain(c, SCAN_TYPE, "records", "an array of at least one record");
        return p + 1;
    }
    for (;;) {
        if (!(p = read_record(c, p)))
            return NULL;
        p = json_space(&c->json, p);
        if (p == c->json.end || *p != ',')
            break;
        p = json_space(&c->json, p + 1);
    }
    c->record = -1;
    if (p == c->json.end || *p != ']')
        return json_fail(&c->json, p, JSON_UNEXPECTED);
    if (w->records_seen > limits->max_records) {
        struct scan_error *error = scan_complain(c, SCAN_BATCH_TOO_LARGE, "records", "records");
        error->limit = limits->max_records;
        error->actual = w->records_seen;
    }
    return p + 1;
}

static uint32_t characters(const struct text *text)
{
    uint32_t count = 0;
    if (text->escaped)
        return text->size.characters;
    for (uint32_t i = 0; i < text->bytes; i++)
        count += (text->at[i] & 0xC0) != 0x80;
    return count;
}

static const uint8_t *read_key(struct scan *c, const struct member *m, struct write_request *write)
{
    const struct write_limits *limits = c->limits;
    const uint32_t most = limits->max_key_chars < SCAN_KEY_CHARACTERS_MAX ? limits->max_key_chars : SCAN_KEY_CHARACTERS_MAX;
    struct text text;
    uint32_t count;
    const uint8_t *p;
    if (*m->value != '"') {
        if ((p = json_value(&c->json, m->value, IN_ROOT)) && !scan_is_null(m->value))
            scan_complain(c, SCAN_TYPE, "idempotency_key", "a string");
        return p;
    }
    if (!(p = scan_text(c, m->value, &text)))
        return NULL;
    count = characters(&text);
    if (count > most)
        scan_complain_limit(c, "idempotency_key", "characters", most, count);
    else if (!count)
        scan_complain(c, SCAN_TYPE, "idempotency_key", "at least one character");
    else
        write->key_bytes = scan_copy_text(&text, write->key);
    return p;
}

static const uint8_t *skip_member(struct scan *c, int which, const struct member *m)
{
    (void)which;
    return json_value(&c->json, m->value, c->inside ? IN_RECORDS : IN_ROOT);
}

/* Members of the config are checked by whoever applies it; here only that none stands twice. */
static const uint8_t *read_config(struct scan *c, const uint8_t *value, struct write_request *write)
{
    const uint8_t *p;
    if (*value != '{') {
        if ((p = json_value(&c->json, value, IN_ROOT)) && !scan_is_null(value))
            scan_complain(c, SCAN_TYPE, "config", "an object");
        return p;
    }
    c->inside = "config";
    p = scan_object(c, value, IN_RECORDS, NULL, 0, skip_member);
    c->inside = NULL;
    if (p) {
        write->has_config = 1;
        write->config_at = place(c, value);
        write->config_bytes = (uint32_t)(p - value);
    }
    return p;
}

static const uint8_t *read_write_member(struct scan *c, int which, const struct member *m)
{
    struct writing *w = c->request;
    const struct write_limits *limits = c->limits;
    const uint8_t *p;
    switch (which) {
    case W_RECORDS:
        return read_records(c, m->value);
    case W_NODE:
        return read_label(c, m, IN_ROOT, "node", limits->max_node_bytes, &w->write->batch);
    case W_KEY:
        return read_key(c, m, w->write);
    case W_CREATE: {
        uint8_t flag = 2;
        p = scan_flag(c, m, IN_ROOT, "create", &flag);
        w->write->create = flag == 2 ? -1 : (int8_t)flag;
        return p;
    }
    case W_CONFIG:
        return read_config(c, m->value, w->write);
    case W_BACKPRESSURE:
        return scan_flag(c, m, IN_ROOT, "disable_backpressure", &w->write->disable_backpressure);
    default:
        return json_value(&c->json, m->value, IN_ROOT);
    }
}

/* Lengths are summed record by record, and once more where the batch has a node, which may stand behind them. */
static void measure_all(struct scan *c, struct write_request *write)
{
    if (write->batch.flags & RECORD_NODE) {
        write->payload_bytes = write->records_bytes = 0;
        for (uint32_t i = 0; i < write->count; i++)
            measure(write, &write->records[i]);
    }
    if (write->records_bytes > 0xFFFF0000u - SCAN_KEY_BYTES_MAX) {
        struct scan_error *error = scan_complain(c, SCAN_BATCH_TOO_LARGE, "records", "bytes as stored");
        error->limit = 0xFFFF0000u;
        error->actual = write->records_bytes;
    }
}

int topicsd_scan_write(const uint8_t *body, size_t length, const struct write_limits *limits, struct write_request *out)
{
    struct record_span *records = out->records;
    uint32_t room = out->room;
    struct scan c;
    struct writing w;
    const uint8_t *p;
    memset(&w, 0, sizeof w);
    memset(out, 0, offsetof(struct write_request, key));
    out->body = body;
    out->body_bytes = length;
    out->records = records;
    out->room = room;
    out->create = -1;
    w.write = out;
    scan_begin(&c, body, length, limits->max_depth, &out->error, &w);
    c.limits = limits;
    p = scan_root(&c, write_members, W_COUNT, read_write_member);
    c.record = -1;
    if (p && !w.given_records)
        scan_complain(&c, SCAN_MISSING, "records", NULL);
    if (p)
        measure_all(&c, out);
    return scan_end(&c, p);
}

void topicsd_write_free(struct write_request *request)
{
    free(request->records);
    request->records = NULL;
    request->room = request->count = 0;
}

/* ---- diff and delete ------------------------------------------------------------------------------------------------------- */

#include "scan_read.h"

/* ---- syntax alone ---------------------------------------------------------------------------------------------------------- */

int topicsd_scan_check(const uint8_t *body, size_t length, uint32_t max_depth, int object, struct scan_error *error)
{
    struct scan c;
    scan_begin(&c, body, length, max_depth, error, NULL);
    if (object || c.refused)
        return scan_end(&c, scan_root(&c, NULL, 0, skip_member));
    return scan_end(&c, json_value(&c.json, json_space(&c.json, body), 0));
}

int topicsd_scan_path(int path)
{
    int before = topicsd_path;
    topicsd_path = path;
    return before;
}
