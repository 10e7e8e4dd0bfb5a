/* The bodies of diff and delete. Part of scan_impl.c. */
#ifndef TOPICSD_SCAN_READ_H
#define TOPICSD_SCAN_READ_H

/* Canonical text goes into an arena as large as the body: the canonical forms of all its strings fit, so it never moves. */
static int keep_text(struct scan *c, const struct text *text, uint8_t **arena, uint32_t *arena_bytes, struct text_span *out)
{
    if (!*arena && !(*arena = malloc((size_t)(c->json.end - c->json.begin)))) {
        scan_complain(c, SCAN_MEMORY, NULL, NULL);
        return -1;
    }
    out->at = *arena_bytes;
    out->bytes = scan_copy_text(text, *arena + *arena_bytes);
    *arena_bytes += out->bytes;
    return 0;
}

/* ---- match ------------------------------------------------------------------------------------------------------------- */

static const char match_form[] = "[\"tag\", \"Eq\"|\"Glob\", text] or a tag; the text of a Glob ends in *";

struct matching { /* where a predicate goes */
    uint16_t *kind;
    struct text_span *text;
    uint8_t **arena;
    uint32_t *arena_bytes;
};

static void keep_match(struct scan *c, const struct text *text, int glob, const struct matching *to)
{
    uint32_t length = text->size.stored;
    if (text->size.decoded > SCAN_MATCH_BYTES_MAX) {
        scan_complain_limit(c, "match", "bytes", SCAN_MATCH_BYTES_MAX, text->size.decoded);
        return;
    }
    if (keep_text(c, text, to->arena, to->arena_bytes, to->text))
        return;
    if (!glob) {
        *to->kind = MATCH_EQ;
    } else if (length && (*to->arena)[to->text->at + length - 1] == '*') { /* in the decoded text: \u002a is a star as well */
        *to->kind = MATCH_PREFIX;
        to->text->bytes--;
    } else {
        scan_complain(c, SCAN_TYPE, "match", match_form);
    }
}

static int text_is(const struct text *text, const char *word)
{
    uint8_t decoded[8];
    uint32_t length = (uint32_t)strlen(word);
    if (text->size.stored != length)
        return 0;
    scan_copy_text(text, decoded);
    return !memcmp(decoded, word, length);
}

/* `p` stands at '['. The syntax of whatever stands there is read to its end, and only then judged. */
static const uint8_t *read_match_tuple(struct scan *c, const uint8_t *p, const struct matching *to)
{
    struct text parts[3];
    uint32_t count = 0;
    int strings = 1;
    if (IN_RECORDS > c->json.depth_max)
        return json_fail(&c->json, p, JSON_DEPTH);
    p = json_space(&c->json, p + 1);
    if (p < c->json.end && *p == ']') {
        scan_complain(c, SCAN_TYPE, "match", match_form);
        return p + 1;
    }
    for (;; p = json_space(&c->json, p + 1)) {
        int string = count < 3 && p < c->json.end && *p == '"';
        p = string ? scan_text(c, p, &parts[count]) : json_value(&c->json, p, IN_RECORDS);
        if (!p)
            return NULL;
        strings &= string;
        count++;
        p = json_space(&c->json, p);
        if (p == c->json.end || *p != ',')
            break;
    }
    if (p == c->json.end || *p != ']')
        return json_fail(&c->json, p, JSON_UNEXPECTED);
    if (!strings || count != 3 || !text_is(&parts[0], "tag") || !(text_is(&parts[1], "Eq") || text_is(&parts[1], "Glob")))
        scan_complain(c, SCAN_TYPE, "match", match_form);
    else
        keep_match(c, &parts[2], text_is(&parts[1], "Glob"), to);
    return p + 1;
}

static const uint8_t *read_match(struct scan *c, const uint8_t *value, const struct matching *to)
{
    struct text text;
    const uint8_t *p;
    if (*value == '[')
        return read_match_tuple(c, value, to);
    if (*value == '"') {
        if ((p = scan_text(c, value, &text)))
            keep_match(c, &text, 0, to);
        return p;
    }
    if ((p = json_value(&c->json, value, IN_ROOT)) && !scan_is_null(value))
        scan_complain(c, SCAN_TYPE, "match", match_form);
    return p;
}

/* ---- diff -------------------------------------------------------------------------------------------------------------- */

enum { D_FROM_SEQ, D_LIMIT, D_NODE, D_TAGS, D_META, D_DATA, D_WAIT_MS, D_BATCH_BYTES, D_MATCH, D_EPOCH, D_FROM_TS, D_COUNT };
static const struct known diff_members[D_COUNT] = {
    KNOWN("from_seq"), KNOWN("limit"), KNOWN("node"), KNOWN("include_tags"), KNOWN("include_meta"), KNOWN("include_data"),
    KNOWN("wait_ms"), KNOWN("max_batch_bytes"), KNOWN("match"), KNOWN("epoch"), KNOWN("from_ts"),
};

static const uint8_t *read_node(struct scan *c, const uint8_t *value, uint32_t depth, struct diff_request *diff)
{
    struct text text;
    const uint8_t *p;
    if (value == c->json.end || *value != '"') {
        if ((p = json_value(&c->json, value, depth)) && (depth == IN_RECORDS || !scan_is_null(value)))
            scan_complain(c, SCAN_TYPE, "node", "a string or an array of strings");
        return p;
    }
    if (!(p = scan_text(c, value, &text)))
        return NULL;
    if (diff->node_count == SCAN_NODES_MAX) {
        scan_complain_limit(c, "node", "nodes", SCAN_NODES_MAX, SCAN_NODES_MAX + 1);
        return p;
    }
    if (diff->node_count == diff->node_room) {
        uint32_t room = diff->node_room ? 2 * diff->node_room : 4;
        struct text_span *nodes = realloc(diff->nodes, room * sizeof *nodes);
        if (!nodes) {
            scan_complain(c, SCAN_MEMORY, NULL, NULL);
            return p;
        }
        diff->nodes = nodes;
        diff->node_room = room;
    }
    if (!keep_text(c, &text, &diff->arena, &diff->arena_bytes, &diff->nodes[diff->node_count]))
        diff->node_count++;
    return p;
}

static const uint8_t *read_nodes(struct scan *c, const uint8_t *p, struct diff_request *diff)
{
    if (*p != '[')
        return read_node(c, p, IN_ROOT, diff);
    if (IN_RECORDS > c->json.depth_max)
        return json_fail(&c->json, p, JSON_DEPTH);
    p = json_space(&c->json, p + 1);
    if (p < c->json.end && *p == ']')
        return p + 1;
    for (;; p = json_space(&c->json, p + 1)) {
        if (!(p = read_node(c, p, IN_RECORDS, diff)))
            return NULL;
        p = json_space(&c->json, p);
        if (p == c->json.end || *p != ',')
            break;
    }
    return p < c->json.end && *p == ']' ? p + 1 : json_fail(&c->json, p, JSON_UNEXPECTED);
}

/* `limit` and `wait_ms` are clamped where they are used, so a number too large for 32 bits is as good as the largest. */
static const uint8_t *read_clamped(struct scan *c, const struct member *m, const char *name, uint32_t *out)
{
    uint64_t value = 0;
    const uint8_t *p = scan_number(c, m, IN_ROOT, name, &value, NULL);
    *out = value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;
    return p;
}

static const uint8_t *read_diff_member(struct scan *c, int which, const struct member *m)
{
    struct diff_request *diff = c->request;
    const struct matching match = {&diff->match_kind, &diff->match, &diff->arena, &diff->arena_bytes};
    switch (which) {
    case D_FROM_SEQ:
        return scan_number(c, m, IN_ROOT, "from_seq", &diff->from_seq, NULL);
    case D_LIMIT:
        return read_clamped(c, m, "limit", &diff->limit);
    case D_NODE:
        return read_nodes(c, m->value, diff);
    case D_TAGS:
        return scan_flag(c, m, IN_ROOT, "include_tags", &diff->include_tags);
    case D_META:
        return scan_flag(c, m, IN_ROOT, "include_meta", &diff->include_meta);
    case D_DATA:
        return scan_flag(c, m, IN_ROOT, "include_data", &diff->include_data);
    case D_WAIT_MS:
        return read_clamped(c, m, "wait_ms", &diff->wait_ms);
    case D_BATCH_BYTES:
        return scan_number(c, m, IN_ROOT, "max_batch_bytes", &diff->max_batch_bytes, NULL);
    case D_MATCH:
        return read_match(c, m->value, &match);
    case D_EPOCH:
        return scan_number(c, m, IN_ROOT, "epoch", &diff->epoch, &diff->has_epoch);
    case D_FROM_TS:
        return scan_number(c, m, IN_ROOT, "from_ts", &diff->from_ts, &diff->has_from_ts);
    default:
        return json_value(&c->json, m->value, IN_ROOT);
    }
}

int topicsd_scan_diff(const uint8_t *body, size_t length, uint32_t max_depth, struct diff_request *out)
{
    struct text_span *nodes = out->nodes;
    uint32_t room = out->node_room;
    struct scan c;
    free(out->arena); /* as large as the body was: nothing to keep */
    memset(out, 0, sizeof *out);
    out->nodes = nodes;
    out->node_room = room;
    out->include_meta = out->include_data = 1;
    scan_begin(&c, body, length, max_depth, &out->error, out);
    if (!length)
        return SCAN_OK; /* an empty body is {} */
    return scan_end(&c, scan_root(&c, diff_members, D_COUNT, read_diff_member));
}

void topicsd_diff_free(struct diff_request *request)
{
    free(request->arena);
    free(request->nodes);
    memset(request, 0, sizeof *request);
}

/* ---- delete ------------------------------------------------------------------------------------------------------------ */

enum { X_BEFORE_SEQ, X_MATCH, X_COUNT };
static const struct known delete_members[X_COUNT] = {KNOWN("before_seq"), KNOWN("match")};

static const uint8_t *read_delete_member(struct scan *c, int which, const struct member *m)
{
    struct delete_request *erase = c->request;
    const struct matching match = {&erase->match_kind, &erase->match, &erase->arena, &erase->arena_bytes};
    switch (which) {
    case X_BEFORE_SEQ:
        return scan_number(c, m, IN_ROOT, "before_seq", &erase->before_seq, &erase->has_before_seq);
    case X_MATCH:
        return read_match(c, m->value, &match);
    default:
        return json_value(&c->json, m->value, IN_ROOT);
    }
}

int topicsd_scan_delete(const uint8_t *body, size_t length, uint32_t max_depth, struct delete_request *out)
{
    struct scan c;
    const uint8_t *p;
    free(out->arena);
    memset(out, 0, sizeof *out);
    scan_begin(&c, body, length, max_depth, &out->error, out);
    p = scan_root(&c, delete_members, X_COUNT, read_delete_member);
    if (p && !out->has_before_seq && out->match_kind == MATCH_NONE)
        scan_complain(&c, SCAN_MISSING, "before_seq", "or match");
    return scan_end(&c, p);
}

void topicsd_delete_free(struct delete_request *request)
{
    free(request->arena);
    memset(request, 0, sizeof *request);
}

#endif
