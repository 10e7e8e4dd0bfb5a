/* HTTP/1.1 on the way in (RFC 9112), strictly: a request's head, and where its body ends.
 *
 *   | method SP target SP HTTP/1.x CRLF | name ":" OWS value OWS CRLF | ... | CRLF | body: none, Content-Length bytes, or chunks |
 *
 * Whatever two readers could frame differently is an error here: bare CR or LF, folded lines, space before a colon, control bytes,
 * Transfer-Encoding beside Content-Length, a length that comes twice, chunk sizes that are not plain hex. What is legal but rare is
 * reported by flags, and the caller hands such a request on. Spans are offsets from the head's first byte. No allocation, no state of its own.
 */
#ifndef TOPICSD_HTTP_H
#define TOPICSD_HTTP_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HTTP_HEAD_BYTES_MAX 32768u      /* request line and fields; more is 431 */
#define HTTP_FIELDS_MAX 100u
#define HTTP_FIELD_BYTES_MAX 8190u
#define HTTP_LINE_BYTES_MAX 4094u       /* request line; more is 414 */
#define HTTP_CHUNK_LINE_BYTES_MAX 1024u /* a chunk's size and its extensions */
#define HTTP_TRAILER_BYTES_MAX 8192u
#define HTTP_REQUEST_ID_BYTES_MAX 64u

enum http_result { /* of http_head_end and http_head_parse: > 0 is the head's length */
    HTTP_MORE = 0,
    HTTP_BAD_LINE = -1,       /* 400: request line */
    HTTP_BAD_FIELD = -2,      /* 400: a field's name, colon, value or line end */
    HTTP_BAD_LENGTH = -3,     /* 400: Content-Length */
    HTTP_BAD_FRAMING = -4,    /* 400: two ways to tell where the body ends */
    HTTP_BAD_CODING = -5,     /* 400: a transfer coding that is not chunked */
    HTTP_LINE_TOO_LONG = -6,  /* 414 */
    HTTP_HEAD_TOO_LARGE = -7, /* 431 */
    HTTP_BAD_CHUNK = -8,      /* 400 */
    HTTP_BAD_HOST = -9,       /* 400: more than one */
};

enum http_method { METHOD_OTHER = 0, METHOD_GET = 1, METHOD_POST = 2 };
enum http_body { BODY_NONE = 0, BODY_LENGTH = 1, BODY_CHUNKED = 2 };

#define HEAD_HOST 0x001u
#define HEAD_CLOSE 0x002u        /* Connection: close */
#define HEAD_UPGRADE 0x004u
#define HEAD_EXPECT 0x008u
#define HEAD_ENCODED 0x010u      /* Content-Encoding stands there */
#define HEAD_GZIP 0x020u         /* Accept-Encoding stands there, and is not empty */
#define HEAD_JSON 0x040u         /* Content-Type is application/json */
#define HEAD_TYPE 0x080u         /* Content-Type stands there */
#define HEAD_LENGTH 0x100u
#define HEAD_CODING 0x200u
#define HEAD_TWICE 0x400u        /* a field that we look at comes twice: only one of the two doors may choose */

struct http_span {
    uint32_t at, bytes;
};

struct http_head {
    uint32_t method; /* enum http_method */
    uint32_t minor;  /* HTTP/1.minor */
    uint32_t flags;  /* HEAD_* */
    uint32_t body;   /* enum http_body */
    uint64_t length; /* Content-Length */
    uint32_t fields;
    struct http_span target, authorization, key; /* bytes 0: absent; key is Idempotency-Key */
    uint32_t has_authorization, has_key;
    struct http_span request_id; /* X-Request-Id */
    uint32_t has_request_id;
};

static const uint8_t http_name_byte[256] = { /* tchar: 1; the lower-case letter is found by | 0x20 */
    ['!'] = 1, ['#'] = 1, ['$'] = 1, ['%'] = 1, ['&'] = 1, ['\''] = 1, ['*'] = 1, ['+'] = 1, ['-'] = 1, ['.'] = 1, ['^'] = 1, ['_'] = 1,
    ['`'] = 1, ['|'] = 1, ['~'] = 1, ['0' ... '9'] = 1, ['A' ... 'Z'] = 1, ['a' ... 'z'] = 1,
};

static inline int http_value_byte(uint8_t byte) { return (byte >= 0x20 && byte != 0x7F) || byte == '\t'; }

/* Compare with a text in lower case. */
static inline int http_is(const uint8_t *at, size_t bytes, const char *text, size_t text_bytes)
{
    if (bytes != text_bytes)
        return 0;
    for (size_t i = 0; i < bytes; i++) {
        uint8_t byte = at[i];
        if (byte >= 'A' && byte <= 'Z')
            byte |= 0x20;
        if (byte != (uint8_t)text[i])
            return 0;
    }
    return 1;
}
#define HTTP_IS(at, bytes, text) http_is(at, bytes, text, sizeof(text) - 1)

/* Look on for the end of a head from `from`, where an earlier look stopped: its length, HTTP_MORE, or an error that is certain already. */
static inline int64_t http_head_end(const uint8_t *at, size_t bytes, size_t *from)
{
    size_t place = *from;
    size_t limit = bytes < HTTP_HEAD_BYTES_MAX ? bytes : HTTP_HEAD_BYTES_MAX;
    while (place < limit) {
        const uint8_t *feed = memchr(at + place, '\n', limit - place);
        if (feed == NULL)
            break;
        size_t line = (size_t)(feed - at);
        if (line == 0 || at[line - 1] != '\r')
            return place == 0 ? HTTP_BAD_LINE : HTTP_BAD_FIELD;
        if (line >= 3 && at[line - 2] == '\n')
            return (int64_t)line + 1;
        place = line + 1;
        *from = place;
    }
    if (bytes >= HTTP_HEAD_BYTES_MAX)
        return memchr(at, '\n', HTTP_HEAD_BYTES_MAX) == NULL ? HTTP_LINE_TOO_LONG : HTTP_HEAD_TOO_LARGE;
    return HTTP_MORE;
}

static inline int http_request_line(const uint8_t *at, size_t bytes, struct http_head *out)
{
    size_t place = 0, target;
    while (place < bytes && http_name_byte[at[place]])
        place++;
    if (place == 0 || place > 32 || place == bytes || at[place] != ' ')
        return HTTP_BAD_LINE;
    if (place == 3 && memcmp(at, "GET", 3) == 0)
        out->method = METHOD_GET;
    else if (place == 4 && memcmp(at, "POST", 4) == 0)
        out->method = METHOD_POST;
    target = ++place;
    while (place < bytes && at[place] > 0x20 && at[place] < 0x7F)
        place++;
    if (place == target || bytes - place != 9 || memcmp(at + place, " HTTP/1.", 8) != 0)
        return HTTP_BAD_LINE;
    if (at[bytes - 1] != '0' && at[bytes - 1] != '1')
        return HTTP_BAD_LINE;
    out->minor = at[bytes - 1] - '0';
    out->target.at = (uint32_t)target;
    out->target.bytes = (uint32_t)(place - target);
    return 0;
}

static inline int http_length(const uint8_t *at, size_t bytes, uint64_t *out)
{
    uint64_t value = 0;
    if (bytes == 0 || bytes > 18)
        return HTTP_BAD_LENGTH;
    for (size_t i = 0; i < bytes; i++) {
        if (at[i] < '0' || at[i] > '9')
            return HTTP_BAD_LENGTH;
        value = value * 10 + (at[i] - '0');
    }
    *out = value;
    return 0;
}

static inline void http_connection(const uint8_t *at, size_t bytes, struct http_head *out)
{
    size_t place = 0;
    while (place < bytes) {
        size_t end = place, last;
        while (end < bytes && at[end] != ',')
            end++;
        last = end;
        while (place < last && (at[place] == ' ' || at[place] == '\t'))
            place++;
        while (last > place && (at[last - 1] == ' ' || at[last - 1] == '\t'))
            last--;
        if (HTTP_IS(at + place, last - place, "close"))
            out->flags |= HEAD_CLOSE;
        else if (HTTP_IS(at + place, last - place, "upgrade"))
            out->flags |= HEAD_UPGRADE;
        place = end + 1;
    }
}

static inline int http_json_type(const uint8_t *at, size_t bytes)
{
    const size_t name = sizeof("application/json") - 1;
    if (bytes < name || !HTTP_IS(at, name, "application/json"))
        return 0;
    while (bytes > name && (at[name] == ' ' || at[name] == '\t'))
        at++, bytes--;
    return bytes == name || at[name] == ';';
}

static inline void http_once(struct http_head *out, uint32_t flag)
{
    if (out->flags & flag)
        out->flags |= HEAD_TWICE;
    out->flags |= flag;
}

static inline void http_keep(struct http_head *out, struct http_span *span, uint32_t *has, uint32_t at, size_t bytes)
{
    if (*has)
        out->flags |= HEAD_TWICE;
    *has = 1;
    span->at = at;
    span->bytes = (uint32_t)bytes;
}

/* An X-Request-Id that is taken over: 1 to HTTP_REQUEST_ID_BYTES_MAX of A-Z a-z 0-9 . _ ~ : / + = @ - */
static inline int http_plain_id(const uint8_t *at, size_t bytes)
{
    if (bytes == 0 || bytes > HTTP_REQUEST_ID_BYTES_MAX)
        return 0;
    for (size_t i = 0; i < bytes; i++) {
        uint8_t byte = at[i], letter = byte | 0x20;
        if (!((letter >= 'a' && letter <= 'z') || (byte >= '-' && byte <= ':') || byte == '_' || byte == '~' || byte == '+' || byte == '=' || byte == '@'))
            return 0; /* '-' to ':' are - . / 0-9 : */
    }
    return 1;
}

/* One field whose name's length decides which names it may be. */
static inline int http_field(const uint8_t *head, uint32_t name_at, size_t name, uint32_t value_at, size_t value, struct http_head *out)
{
    const uint8_t *at = head + name_at, *text = head + value_at;
    switch (name) {
    case 4:
        if (HTTP_IS(at, name, "host")) {
            if (out->flags & HEAD_HOST)
                return HTTP_BAD_HOST;
            out->flags |= HEAD_HOST;
        }
        break;
    case 6:
        if (HTTP_IS(at, name, "expect"))
            out->flags |= HEAD_EXPECT;
        break;
    case 7:
        if (HTTP_IS(at, name, "upgrade"))
            out->flags |= HEAD_UPGRADE;
        break;
    case 10:
        if (HTTP_IS(at, name, "connection"))
            http_connection(text, value, out);
        break;
    case 12:
        if (HTTP_IS(at, name, "content-type")) {
            http_once(out, HEAD_TYPE);
            if (http_json_type(text, value))
                out->flags |= HEAD_JSON;
        } else if (HTTP_IS(at, name, "x-request-id"))
            http_keep(out, &out->request_id, &out->has_request_id, value_at, value);
        break;
    case 13:
        if (HTTP_IS(at, name, "authorization"))
            http_keep(out, &out->authorization, &out->has_authorization, value_at, value);
        break;
    case 14:
        if (HTTP_IS(at, name, "content-length")) {
            if (out->flags & HEAD_LENGTH)
                return HTTP_BAD_LENGTH;
            out->flags |= HEAD_LENGTH;
            return http_length(text, value, &out->length);
        }
        break;
    case 15:
        if (HTTP_IS(at, name, "accept-encoding") && value)
            out->flags |= HEAD_GZIP;
        else if (HTTP_IS(at, name, "idempotency-key"))
            http_keep(out, &out->key, &out->has_key, value_at, value);
        break;
    case 16:
        if (HTTP_IS(at, name, "content-encoding"))
            out->flags |= HEAD_ENCODED;
        break;
    case 17:
        if (HTTP_IS(at, name, "transfer-encoding")) {
            if (out->flags & HEAD_CODING)
                return HTTP_BAD_FRAMING;
            out->flags |= HEAD_CODING;
            if (!HTTP_IS(text, value, "chunked"))
                return HTTP_BAD_CODING;
        }
        break;
    }
    return 0;
}

/* A line's name, colon and value; `bytes` leaves out its CRLF. */
static inline int http_field_line(const uint8_t *head, uint32_t line, size_t bytes, struct http_head *out)
{
    const uint8_t *at = head + line;
    size_t name = 0, start, end = bytes;
    if (bytes > HTTP_FIELD_BYTES_MAX)
        return HTTP_HEAD_TOO_LARGE;
    while (name < bytes && http_name_byte[at[name]])
        name++;
    if (name == 0 || name == bytes || at[name] != ':')
        return HTTP_BAD_FIELD;
    start = name + 1;
    for (size_t i = start; i < bytes; i++)
        if (!http_value_byte(at[i]))
            return HTTP_BAD_FIELD;
    while (start < end && (at[start] == ' ' || at[start] == '\t'))
        start++;
    while (end > start && (at[end - 1] == ' ' || at[end - 1] == '\t'))
        end--;
    return http_field(head, line, name, line + (uint32_t)start, end - start, out);
}

/* Parse a head of `bytes` bytes that http_head_end has measured. 0, or a negative http_result. */
static inline int http_head_parse(const uint8_t *at, size_t bytes, struct http_head *out)
{
    size_t place = 0;
    int wrong;
    memset(out, 0, sizeof(*out));
    while (1) {
        const uint8_t *feed = memchr(at + place, '\n', bytes - place);
        size_t line;
        if (feed == NULL || feed == at + place || feed[-1] != '\r')
            return HTTP_BAD_FIELD;
        line = (size_t)(feed - at) - 1 - place; /* without CRLF */
        if (line == 0)
            break;
        if (place == 0) {
            if (line > HTTP_LINE_BYTES_MAX)
                return HTTP_LINE_TOO_LONG;
            wrong = http_request_line(at, line, out);
        } else {
            if (++out->fields > HTTP_FIELDS_MAX)
                return HTTP_HEAD_TOO_LARGE;
            wrong = http_field_line(at, (uint32_t)place, line, out);
        }
        if (wrong)
            return wrong;
        place += line + 2;
    }
    if (place == 0)
        return HTTP_BAD_LINE;
    if ((out->flags & HEAD_CODING) && ((out->flags & HEAD_LENGTH) || out->minor == 0))
        return HTTP_BAD_FRAMING;
    out->body = (out->flags & HEAD_CODING) ? BODY_CHUNKED : out->length ? BODY_LENGTH : BODY_NONE;
    return 0;
}

/* ---- where a body ends -------------------------------------------------------------------------------------------------------- */

enum http_chunk_state { CHUNK_SIZE = 0, CHUNK_EXTENSION, CHUNK_SIZE_FEED, CHUNK_DATA, CHUNK_DATA_RETURN, CHUNK_DATA_FEED, CHUNK_TRAILER,
                        CHUNK_TRAILER_NAME, CHUNK_TRAILER_VALUE, CHUNK_TRAILER_FEED, CHUNK_LAST_FEED, CHUNK_END };

struct http_frame { /* zero it, then set kind, and left for BODY_LENGTH */
    uint32_t kind;  /* enum http_body */
    uint32_t state; /* enum http_chunk_state */
    uint64_t left;  /* bytes of the body or of this chunk */
    uint32_t digits;
    uint32_t line;  /* bytes of this size line, or of all trailers */
};

static inline int http_hex(uint8_t byte)
{
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    byte |= 0x20;
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

static inline int http_frame_done(const struct http_frame *frame)
{
    return frame->kind == BODY_NONE || (frame->kind == BODY_LENGTH ? frame->left == 0 : frame->state == CHUNK_END);
}

static inline int http_chunk_byte(struct http_frame *frame, uint8_t byte)
{
    int digit;
    switch (frame->state) {
    case CHUNK_SIZE:
        digit = http_hex(byte);
        if (digit >= 0) {
            if (++frame->line > HTTP_CHUNK_LINE_BYTES_MAX || frame->left >> 56)
                return HTTP_BAD_CHUNK;
            frame->digits = 1;
            frame->left = frame->left << 4 | (uint64_t)digit;
            return 0;
        }
        if (!frame->digits || (byte != ';' && byte != '\r'))
            return HTTP_BAD_CHUNK;
        frame->state = byte == ';' ? CHUNK_EXTENSION : CHUNK_SIZE_FEED;
        return 0;
    case CHUNK_EXTENSION:
        if (byte == '\r')
            frame->state = CHUNK_SIZE_FEED;
        else if (!http_value_byte(byte) || ++frame->line > HTTP_CHUNK_LINE_BYTES_MAX)
            return HTTP_BAD_CHUNK;
        return 0;
    case CHUNK_SIZE_FEED:
        frame->line = frame->digits = 0;
        frame->state = frame->left ? CHUNK_DATA : CHUNK_TRAILER;
        return byte == '\n' ? 0 : HTTP_BAD_CHUNK;
    case CHUNK_DATA_RETURN:
        frame->state = CHUNK_DATA_FEED;
        return byte == '\r' ? 0 : HTTP_BAD_CHUNK;
    case CHUNK_DATA_FEED:
        frame->state = CHUNK_SIZE;
        return byte == '\n' ? 0 : HTTP_BAD_CHUNK;
    case CHUNK_TRAILER: /* a line begins */
        if (byte == '\r') {
            frame->state = CHUNK_LAST_FEED;
            return 0;
        }
        frame->state = CHUNK_TRAILER_NAME;
        return http_name_byte[byte] ? 0 : HTTP_BAD_CHUNK;
    case CHUNK_TRAILER_NAME:
        if (++frame->line > HTTP_TRAILER_BYTES_MAX)
            return HTTP_BAD_CHUNK;
        if (byte == ':')
            frame->state = CHUNK_TRAILER_VALUE;
        else if (!http_name_byte[byte])
            return HTTP_BAD_CHUNK;
        return 0;
    case CHUNK_TRAILER_VALUE:
        if (byte == '\r')
            frame->state = CHUNK_TRAILER_FEED;
        else if (!http_value_byte(byte) || ++frame->line > HTTP_TRAILER_BYTES_MAX)
            return HTTP_BAD_CHUNK;
        return 0;
    case CHUNK_TRAILER_FEED:
        frame->state = CHUNK_TRAILER;
        return byte == '\n' ? 0 : HTTP_BAD_CHUNK;
    case CHUNK_LAST_FEED:
        frame->state = CHUNK_END;
        return byte == '\n' ? 0 : HTTP_BAD_CHUNK;
    }
    return HTTP_BAD_CHUNK;
}

/* How many of these bytes belong to the body; HTTP_BAD_CHUNK. http_frame_done says whether it ends with them. */
static inline int64_t http_frame_feed(struct http_frame *frame, const uint8_t *at, size_t bytes)
{
    size_t place = 0;
    if (frame->kind == BODY_LENGTH) {
        place = frame->left < bytes ? (size_t)frame->left : bytes;
        frame->left -= place;
        return (int64_t)place;
    }
    if (frame->kind == BODY_NONE)
        return 0;
    while (place < bytes && frame->state != CHUNK_END) {
        if (frame->state == CHUNK_DATA) {
            size_t part = frame->left < bytes - place ? (size_t)frame->left : bytes - place;
            frame->left -= part;
            place += part;
            if (frame->left == 0)
                frame->state = CHUNK_DATA_RETURN;
        } else {
            int wrong = http_chunk_byte(frame, at[place++]);
            if (wrong)
                return wrong;
        }
    }
    return (int64_t)place;
}

/* ---- paths ----------------------------------------------------------------------------------------------------------------------- */

/* The numbers of api/operations.py. */
enum http_route {
    ROUTE_NONE = 0,
    ROUTE_APPEND = 1,
    ROUTE_DIFF = 2,
    ROUTE_STATE = 3,
    ROUTE_CLAIM = 8,
    ROUTE_ACK = 9,
    ROUTE_NACK = 10,
    ROUTE_EXTEND = 11
};

static inline int http_verb(const uint8_t *at, size_t bytes)
{
    if (bytes == 5 && memcmp(at, "/diff", 5) == 0)
        return ROUTE_DIFF;
    if (bytes == 6 && memcmp(at, "/claim", 6) == 0)
        return ROUTE_CLAIM;
    if (bytes == 4 && memcmp(at, "/ack", 4) == 0)
        return ROUTE_ACK;
    if (bytes == 5 && memcmp(at, "/nack", 5) == 0)
        return ROUTE_NACK;
    if (bytes == 7 && memcmp(at, "/extend", 7) == 0)
        return ROUTE_EXTEND;
    return ROUTE_NONE;
}

/* The hot route that a method and a target name, with the topic's span in `name` and the query's, without `?`, in `query`. */
static inline int http_route(const struct http_head *head, const uint8_t *at, struct http_span *name, struct http_span *query)
{
    static const char prefix[] = "/v0/topics/";
    const uint8_t *target = at + head->target.at;
    size_t bytes = head->target.bytes, place = sizeof(prefix) - 1, end;
    const uint8_t *mark;
    if (bytes <= place || memcmp(target, prefix, place) != 0)
        return ROUTE_NONE;
    mark = memchr(target, '?', bytes);
    end = mark ? (size_t)(mark - target) : bytes;
    query->at = head->target.at + (uint32_t)end + 1;
    query->bytes = mark ? (uint32_t)(bytes - end - 1) : 0;
    name->at = head->target.at + (uint32_t)place;
    while (place < end && ((target[place] >= '0' && target[place] <= ':') || (target[place] >= 'A' && target[place] <= 'Z') ||
                           (target[place] >= 'a' && target[place] <= 'z') || target[place] == '.' || target[place] == '_' || target[place] == '-'))
        place++;
    name->bytes = head->target.at + (uint32_t)place - name->at;
    if (name->bytes == 0 || name->bytes > 255)
        return ROUTE_NONE;
    if (place == end)
        return head->method == METHOD_POST ? ROUTE_APPEND : head->method == METHOD_GET ? ROUTE_STATE : ROUTE_NONE;
    return head->method == METHOD_POST ? http_verb(target + place, end - place) : ROUTE_NONE;
}

#endif
