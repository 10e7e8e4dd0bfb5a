/* What goes over the wire: requests made once and patched, replies taken apart just enough to count them.
 *
 *   template   bytes that are sent as they stand; `cursor` is where a right-aligned number of CURSOR_DIGITS is patched in (0: none)
 *   reply      HTTP: one response. Redis: one reply a command, NATS: one message a publish; a request of n records has n of them
 */
#pragma once
#define _GNU_SOURCE
#include "options.h"
#include <ctype.h>
#include <stdarg.h>

#define CURSOR_DIGITS 12

struct template {
    char *bytes;
    size_t length, cursor;
    int replies; /* that end it */
    int is_read;
};

static void put(struct template *template, const char *format, ...) {
    va_list list;
    char *more;
    va_start(list, format);
    int length = vasprintf(&more, format, list);
    va_end(list);
    template->bytes = realloc(template->bytes, template->length + (size_t)length + 1);
    memcpy(template->bytes + template->length, more, (size_t)length + 1);
    template->length += (size_t)length;
    free(more);
}

/* A JSON object of exactly `size` bytes. */
static char *payload(int size) {
    char *text = malloc((size_t)size + 1);
    memcpy(text, "{\"k\":\"", 6);
    for (int at = 6; at < size - 2; at++)
        text[at] = (char)('a' + at % 26);
    memcpy(text + size - 2, "\"}", 3);
    return text;
}

static void http_post(struct template *template, const char *path, const char *body, size_t length) {
    put(template, "POST %s HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", path, length);
    template->bytes = realloc(template->bytes, template->length + length + 1);
    memcpy(template->bytes + template->length, body, length + 1);
    template->length += length;
}

static struct template http_template(const struct options *options, const char *topic, int is_read) {
    struct template template = {.replies = 1, .is_read = is_read}, body = {0};
    char path[300], *data = payload(options->size);
    if (options->work == STATE) {
        put(&template, "GET /v0/topics/%s HTTP/1.1\r\nHost: bench\r\n\r\n", topic);
    } else if (is_read) {
        snprintf(path, sizeof path, "/v0/topics/%s/diff", topic);
        put(&body, "{\"from_seq\":");
        size_t at = body.length;
        put(&body, "%*d,\"limit\":%d,\"max_batch_bytes\":8388608}", CURSOR_DIGITS, 0, options->limit);
        http_post(&template, path, body.bytes, body.length);
        template.cursor = template.length - body.length + at;
    } else {
        snprintf(path, sizeof path, "/v0/topics/%s%s", topic, options->batch > 1 ? "?return_seqs=false" : "");
        put(&body, "{\"records\":[");
        for (int record = 0; record < options->batch; record++)
            put(&body, "%s{\"data\":%s}", record ? "," : "", data);
        put(&body, "]}");
        http_post(&template, path, body.bytes, body.length);
    }
    free(body.bytes);
    free(data);
    return template;
}

static struct template redis_template(const struct options *options, const char *topic, int is_read) {
    struct template template = {.replies = is_read ? 1 : options->batch, .is_read = is_read};
    char *data = payload(options->size), limit[16];
    const char *id = options->explicit_ids ? "0-*" : "*";
    if (is_read) {
        snprintf(limit, sizeof limit, "%d", options->limit);
        put(&template, "*6\r\n$5\r\nXREAD\r\n$5\r\nCOUNT\r\n$%zu\r\n%s\r\n$7\r\nSTREAMS\r\n$%zu\r\n%s\r\n$%d\r\n0-", strlen(limit), limit,
            strlen(topic), topic, CURSOR_DIGITS + 2);
        template.cursor = template.length;
        put(&template, "%0*d\r\n", CURSOR_DIGITS, 0);
    }
    for (int record = 0; !is_read && record < options->batch; record++)
        put(&template, "*5\r\n$4\r\nXADD\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n$1\r\nd\r\n$%d\r\n%s\r\n", strlen(topic), topic, strlen(id), id,
            options->size, data);
    free(data);
    return template;
}

static struct template nats_template(const struct options *options, const char *topic, int is_read, int inbox) {
    struct template template = {.replies = is_read ? 1 : options->batch, .is_read = is_read}, body = {0};
    char *data = payload(options->size);
    if (is_read) {
        put(&body, "{\"seq\":");
        size_t at = body.length;
        put(&body, "%*d,\"batch\":%d,\"next_by_subj\":\"%s.0\"}", CURSOR_DIGITS, 1, options->limit, topic);
        put(&template, "PUB $JS.API.DIRECT.GET.%s _INBOX.%d %zu\r\n", topic, inbox, body.length);
        template.cursor = template.length + at;
        put(&template, "%s\r\n", body.bytes);
        free(body.bytes);
    }
    for (int record = 0; !is_read && record < options->batch; record++)
        put(&template, "PUB %s.0 _INBOX.%d %d\r\n%s\r\n", topic, inbox, options->size, data);
    free(data);
    return template;
}

static struct template make_template(const struct options *options, int topic_number, int is_read, int inbox) {
    char topic[256];
    if (options->topics > 1)
        snprintf(topic, sizeof topic, "%s-%d", options->topic, topic_number);
    else
        snprintf(topic, sizeof topic, "%s", options->topic);
    if (options->protocol == HTTP)
        return http_template(options, topic, is_read);
    if (options->protocol == REDIS)
        return redis_template(options, topic, is_read);
    return nats_template(options, topic, is_read, inbox);
}

/* Put a cursor in; spaces before a JSON number, zeroes before a Redis id. NATS counts from the first wanted. */
static void patch(const struct options *options, char *bytes, uint64_t cursor) {
    char digits[CURSOR_DIGITS + 1];
    if (options->protocol == REDIS)
        snprintf(digits, sizeof digits, "%0*llu", CURSOR_DIGITS, (unsigned long long)cursor);
    else
        snprintf(digits, sizeof digits, "%*llu", CURSOR_DIGITS, (unsigned long long)cursor + (options->protocol == NATS));
    memcpy(bytes, digits, CURSOR_DIGITS);
}

/* ---- replies. Each parser is given the unread bytes of a connection and says how many of them one reply takes; 0: more must come. */

struct parser {
    size_t at, total;    /* HTTP: total of the reply; Redis: parsed so far */
    uint64_t items_left; /* Redis: values still to come of the reply */
};

struct reply {
    size_t length;
    int error;    /* a refusal, or something not understood */
    int partial;  /* NATS: a message of a page that is not its end; Redis and HTTP never */
    uint64_t next_from_seq;
};

static uint64_t number_after(const char *bytes, size_t length, const char *name) {
    size_t tail = length < 400 ? length : 400; /* it stands behind the records */
    const char *found = memmem(bytes + length - tail, tail, name, strlen(name));
    return found ? strtoull(found + strlen(name), NULL, 10) : 0;
}

static int http_reply(struct parser *parser, const char *bytes, size_t length, struct reply *reply) {
    if (parser->total == 0) {
        const char *end = memmem(bytes, length, "\r\n\r\n", 4);
        if (end == NULL)
            return 0;
        size_t body = 0;
        for (const char *line = memchr(bytes, '\n', (size_t)(end - bytes)); line; line = memchr(line + 1, '\n', (size_t)(end - line)))
            if (!strncasecmp(line + 1, "content-length:", 15))
                body = strtoull(line + 16, NULL, 10);
        parser->total = (size_t)(end - bytes) + 4 + body;
    }
    if (length < parser->total)
        return 0;
    reply->length = parser->total;
    reply->error = memcmp(bytes + 8, " 20", 3) != 0;
    reply->next_from_seq = number_after(bytes, reply->length, "\"next_from_seq\":");
    parser->total = 0;
    return 1;
}

static int redis_reply(struct parser *parser, const char *bytes, size_t length, struct reply *reply) {
    if (parser->items_left == 0) {
        parser->items_left = 1;
        parser->at = 0;
        parser->total = 0; /* 1: an error was seen */
    }
    while (parser->items_left) {
        const char *start = bytes + parser->at, *end = memchr(start, '\n', length - parser->at);
        if (end == NULL)
            return 0;
        long long value = atoll(start + 1);
        size_t next = (size_t)(end - bytes) + 1;
        if (*start == '$' && value >= 0)
            next += (size_t)value + 2;
        if (next > length)
            return 0;
        if (*start == '-')
            parser->total = 1;
        if (*start == '*' && value > 0)
            parser->items_left += (uint64_t)value;
        parser->at = next;
        parser->items_left--;
    }
    reply->length = parser->at;
    reply->error = (int)parser->total || (bytes[0] == '*' && bytes[1] == '-');
    parser->total = 0;
    return 1;
}

static int nats_reply(const struct options *options, const char *bytes, size_t length, struct reply *reply) {
    const char *end = memchr(bytes, '\n', length);
    if (end == NULL)
        return 0;
    reply->length = (size_t)(end - bytes) + 1;
    if (memcmp(bytes, "MSG ", 4) && memcmp(bytes, "HMSG", 4)) {
        reply->partial = bytes[0] != '-'; /* PING, PONG, +OK, INFO */
        reply->error = bytes[0] == '-';
        return 1;
    }
    const char *size = end;
    while (size[-1] != ' ')
        size--;
    reply->length += strtoull(size, NULL, 10) + 2;
    if (reply->length > length)
        return 0;
    const char *text = end + 1;
    if (options->work == DIFF) { /* a page ends with a status line of its own */
        reply->partial = memcmp(text, "NATS/1.0 204", 12) != 0;
        reply->error = !memcmp(text, "NATS/1.0 4", 10);
    } else {
        reply->error = memmem(text, (size_t)(bytes + reply->length - text), "\"error\"", 7) != NULL;
    }
    return 1;
}

static int take_reply(const struct options *options, struct parser *parser, const char *bytes, size_t length, struct reply *reply) {
    *reply = (struct reply){0};
    if (length == 0)
        return 0;
    if (options->protocol == HTTP)
        return http_reply(parser, bytes, length, reply);
    if (options->protocol == REDIS)
        return redis_reply(parser, bytes, length, reply);
    return nats_reply(options, bytes, length, reply);
}
