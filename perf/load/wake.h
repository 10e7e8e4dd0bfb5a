/* Connecting; and the measurement of wake-ups: readers wait in a long poll, one writer appends, and how long until each reader has it?
 *
 * Included by load.c: it uses its options and its histogram.
 */
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#define PARK_NS 2000000 /* so long, plus a little that is never the same, until a poll surely waits */

static void nats_hello(int fd, int inbox) {
    char text[8192];
    size_t length = (size_t)snprintf(text, sizeof text, "CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\nSUB _INBOX.%d 1\r\nPING\r\n", inbox);
    if (send(fd, text, length, 0) < 0)
        fail("nats", strerror(errno));
    length = 0;
    do {
        ssize_t got = recv(fd, text + length, sizeof text - 1 - length, 0);
        if (got <= 0)
            fail("nats", "no greeting");
        length += (size_t)got;
        text[length] = 0;
    } while (!strstr(text, "PONG\r\n"));
}

/* `number`: of the connection; NATS answers into an inbox of that name. */
static int connect_to(const struct options *options, int number) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options->port)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (inet_pton(AF_INET, options->host, &address.sin_addr) != 1)
        fail("host", options->host);
    if (connect(fd, (struct sockaddr *)&address, sizeof address))
        fail("connect", strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (options->protocol == NATS)
        nats_hello(fd, number);
    return fd;
}

struct line {
    int fd;
    char *text;
    size_t length, room;
    struct parser parser;
};

static void line_send(struct line *line, const char *bytes, size_t length) {
    if (send(line->fd, bytes, length, 0) != (ssize_t)length)
        fail("send", strerror(errno));
}

/* Wait for one reply and return its next_from_seq. */
static uint64_t line_reply(struct line *line, struct reply *reply) {
    while (!take_reply(&options, &line->parser, line->text, line->length, reply)) {
        if (line->room - line->length < 4096)
            line->text = realloc(line->text, line->room = line->room * 2 + 16384);
        ssize_t got = recv(line->fd, line->text + line->length, line->room - line->length, 0);
        if (got <= 0)
            fail("the server closed a connection", got < 0 ? strerror(errno) : "end of stream");
        line->length += (size_t)got;
    }
    if (reply->error)
        note_error(line->text, reply->length);
    line->length -= reply->length;
    memmove(line->text, line->text + reply->length, line->length);
    return reply->next_from_seq;
}

static void poll_request(struct template *template, const char *topic, uint64_t cursor, int wait_ms) {
    char path[300], body[100];
    int length = snprintf(body, sizeof body, "{\"from_seq\":%llu,\"limit\":1000,\"wait_ms\":%d}", (unsigned long long)cursor, wait_ms);
    template->length = 0;
    snprintf(path, sizeof path, "/v0/topics/%s/diff", topic);
    http_post(template, path, body, (size_t)length);
}

/* Each round: every reader sends its long poll, the writer waits until they are parked and appends, the readers' answers are timed. */
static void run_wake(void) {
    int readers = options.connections, left;
    struct line *lines = calloc((size_t)readers + 1, sizeof *lines);
    struct pollfd *waits = calloc((size_t)readers, sizeof *waits);
    struct template request = {0};
    struct reply reply;
    uint64_t cursor = 0, random = 88172645463325252ull;
    for (int each = 0; each <= readers; each++)
        lines[each].fd = connect_to(&options, each + 1);
    line_send(lines + readers, writes[0].bytes, writes[0].length);
    line_reply(lines + readers, &reply);
    for (uint64_t before = 1; !options.trust && cursor != before;) { /* walk to the topic's end; it is never empty */
        before = cursor;
        poll_request(&request, options.topic, cursor, 0);
        line_send(lines, request.bytes, request.length);
        cursor = line_reply(lines, &reply);
    }
    while (now_ns() < measured_until) {
        poll_request(&request, options.topic, cursor, 30000);
        for (int each = 0; each < readers; each++) {
            line_send(lines + each, request.bytes, request.length);
            waits[each] = (struct pollfd){lines[each].fd, POLLIN, 0};
        }
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        struct timespec park = {0, (long)(PARK_NS + random % 1000000)};
        nanosleep(&park, NULL);
        uint64_t sent = now_ns();
        line_send(lines + readers, writes[0].bytes, writes[0].length);
        for (left = readers; left > 0;) {
            if (poll(waits, (nfds_t)readers, 5000) <= 0)
                fail("wake", "a reader was not woken within 5 s");
            uint64_t now = now_ns();
            for (int each = 0; each < readers; each++)
                if (waits[each].fd >= 0 && waits[each].revents) {
                    cursor = line_reply(lines + each, &reply);
                    measure(now, sent, 1, reply.length);
                    waits[each].fd = -1;
                    left--;
                }
        }
        line_reply(lines + readers, &reply);
    }
}
