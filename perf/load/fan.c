/* Fan-out: one publisher, any number of watchers, one thread on epoll; prints "ready", and one line of JSON.
 *
 *   --door sse | websocket | redis | bare     how watchers follow (bare: perf/bare/fan.c)
 *   --watchers N  --batch N  --size BYTES  --seconds S
 *   --window N    publishes under way at a time; 1: the next one goes out when every watcher has the last (latency), more: a flood (rate)
 *   --topics N    the publisher goes round so many topics, and the watchers follow all of them by a pattern (sse alone)
 *
 * A delivery is one record at one watcher. Its latency counts from the send(2) of its publish, and is known where records come in the order of their
 * publishes: with one topic, or a window of 1. `cpu` is this process's own share of one CPU.
 */
#define _GNU_SOURCE
#include "basics.h"
#include "histogram.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SENT_KEPT 65536
#define AHEAD_MAX 64 /* publishes by which the slowest may be behind, on average */
#define STUCK_NS 10000000000ull

struct counter { /* of a marker in bytes that come in pieces */
    char tail[16];
    size_t tail_bytes;
};

struct watcher {
    int fd;
    uint64_t records;
    struct counter counter;
};

static int port, watcher_count = 1, batch = 1, size = 64, window = 1, topics = 1;
static double seconds = 2;
static const char *door = "sse";
static struct watcher *watchers;
static struct histogram latencies;
static uint64_t sent_at[SENT_KEPT], published, acked, delivered, measured;
static char input[1 << 20];

/* Count a marker (of at most 16 bytes), also where it stands across two pieces. */
static uint64_t count(struct counter *counter, const char *bytes, size_t length, const char *marker) {
    size_t wanted = strlen(marker), joined = length < wanted - 1 ? length : wanted - 1;
    char seam[32];
    uint64_t found = 0;
    memcpy(seam, counter->tail, counter->tail_bytes);
    memcpy(seam + counter->tail_bytes, bytes, joined);
    for (char *at = seam; (at = memmem(at, counter->tail_bytes + joined - (size_t)(at - seam), marker, wanted)); at += wanted)
        found += (size_t)(at - seam) < counter->tail_bytes;
    for (const char *at = bytes; (at = memmem(at, length - (size_t)(at - bytes), marker, wanted)); at += wanted)
        found++;
    if (length >= wanted - 1) {
        counter->tail_bytes = wanted - 1;
        memcpy(counter->tail, bytes + length - (wanted - 1), wanted - 1);
    } else {
        size_t kept = counter->tail_bytes + length < wanted - 1 ? counter->tail_bytes : wanted - 1 - length;
        memmove(counter->tail, counter->tail + counter->tail_bytes - kept, kept);
        memcpy(counter->tail + kept, bytes, length);
        counter->tail_bytes = kept + length;
    }
    return found;
}

static int connected(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address))
        fail("connect", strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void send_all(int fd, const char *bytes, size_t length) {
    while (length) {
        ssize_t sent = send(fd, bytes, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            struct pollfd waits = {.fd = fd, .events = POLLOUT};
            poll(&waits, 1, 1000);
            continue;
        }
        if (sent <= 0)
            fail("send", strerror(errno));
        bytes += sent;
        length -= (size_t)sent;
    }
}

/* Read until a text is there; return what was read. */
static char *read_until(int fd, const char *text) {
    static char held[1 << 16];
    size_t length = 0;
    struct timeval patience = {.tv_sec = 20};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    while (1) {
        ssize_t got = recv(fd, held + length, sizeof held - 1 - length, 0);
        if (got <= 0)
            fail("a watcher was refused", length ? held : strerror(errno));
        length += (size_t)got;
        held[length] = 0;
        if (memmem(held, length, text, strlen(text)))
            return held;
    }
}

static size_t http_post(char *to, size_t room, const char *path, const char *body) {
    return (size_t)snprintf(to, room, "POST %s HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", path,
        strlen(body), body);
}

static void follow_sse(int fd) {
    char text[1024], wid[64] = "";
    size_t length = http_post(text, sizeof text, "/v0/watch", topics > 1 ? "{\"topics\":{\"fan-*\":{\"tail\":true}}}" : "{\"topics\":{\"fan\":{\"tail\":true}}}");
    send_all(fd, text, length);
    char *at = strstr(read_until(fd, "}}"), "\"wid\":\"");
    if (at == NULL || sscanf(at + 7, "%63[^\"]", wid) != 1)
        fail("POST /v0/watch", input);
    length = (size_t)snprintf(text, sizeof text, "GET /v0/watch/%s HTTP/1.1\r\nHost: bench\r\nAccept: text/event-stream\r\n\r\n", wid);
    send_all(fd, text, length);
    read_until(fd, ": hb ");
}

static void follow_websocket(int fd) {
    static const char hello[] = "GET /v0/ws HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    static const char subscribe[] = "{\"op\":\"subscribe\",\"request_id\":1,\"topic\":\"fan\",\"tail\":true}";
    char frame[6 + sizeof subscribe - 1] = {(char)0x81, (char)(0x80 | (sizeof subscribe - 1))}; /* the mask is four zeroes */
    memcpy(frame + 6, subscribe, sizeof subscribe - 1);
    send_all(fd, hello, sizeof hello - 1);
    read_until(fd, "\r\n\r\n");
    send_all(fd, frame, sizeof frame);
    read_until(fd, "subscribed");
}

static void follow(int fd) {
    if (!strcmp(door, "sse")) {
        follow_sse(fd);
    } else if (!strcmp(door, "websocket")) {
        follow_websocket(fd);
    } else if (!strcmp(door, "redis")) {
        send_all(fd, "SUBSCRIBE fan\r\n", 15);
        read_until(fd, ":1\r\n");
    } else {
        send_all(fd, "WATCH\n", 6);
        read_until(fd, "ok\n");
    }
}

/* The publish that goes to a topic: made once, sent as it stands. */
static char *publish_text(int topic, size_t *length) {
    size_t room = 512 + (size_t)batch * ((size_t)size + 160);
    char *data = malloc((size_t)size + 1), *body = malloc(room), *text = malloc(room + 512), path[64];
    memcpy(data, "{\"k\":\"", 6);
    memset(data + 6, 'x', (size_t)size - 8);
    memcpy(data + size - 2, "\"}", 3);
    size_t at = 0;
    if (!strcmp(door, "redis")) {
        for (int record = 0; record < batch; record++)
            at += (size_t)snprintf(text + at, room + 512 - at, "*3\r\n$7\r\nPUBLISH\r\n$3\r\nfan\r\n$%d\r\n%s\r\n", size, data);
        *length = at;
    } else {
        at += (size_t)snprintf(body, room, "{\"records\":[");
        for (int record = 0; record < batch; record++)
            at += (size_t)snprintf(body + at, room - at, "%s{\"data\":%s}", record ? "," : "", data);
        snprintf(body + at, room - at, "],\"disable_backpressure\":true}");
        snprintf(path, sizeof path, topics > 1 ? "/v0/topics/fan-%d?return_seqs=false" : "/v0/topics/fan?return_seqs=false", topic);
        *length = http_post(text, room + 512, path, body);
    }
    free(data);
    free(body);
    return text;
}

static void drain_until_quiet(int epoll_fd) {
    struct epoll_event events[256];
    int found;
    while ((found = epoll_wait(epoll_fd, events, 256, 300)) > 0)
        for (int each = 0; each < found; each++) {
            struct watcher *watcher = events[each].data.ptr;
            if (watcher && recv(watcher->fd, input, sizeof input, 0) == 0)
                fail("a watcher", "closed");
        }
}

static void receive(struct watcher *watcher, uint64_t from, uint64_t until) {
    ssize_t got;
    while ((got = recv(watcher->fd, input, sizeof input, MSG_DONTWAIT)) > 0) {
        uint64_t found = count(&watcher->counter, input, (size_t)got, "{\"k\":\""), now = now_ns();
        uint64_t first = watcher->records / (uint64_t)batch, last = (watcher->records + found) / (uint64_t)batch;
        watcher->records += found;
        delivered += found;
        if (now < from || now >= until)
            continue;
        measured += found;
        if (topics == 1 || window == 1)
            for (uint64_t each = first; each < last; each++)
                histogram_add(&latencies, now - sent_at[(window == 1 && topics > 1 ? published - 1 : each) % SENT_KEPT]);
    }
    if (got == 0)
        fail("a watcher", "the server closed it");
}

static int may_publish(void) {
    uint64_t owed = published * (uint64_t)batch * (uint64_t)watcher_count;
    if (window == 1)
        return acked == published && delivered >= owed;
    return published - acked < (uint64_t)window && delivered + AHEAD_MAX * (uint64_t)batch * (uint64_t)watcher_count >= owed;
}

static void run(int epoll_fd, int publisher, char **texts, size_t *lengths) {
    struct epoll_event events[256];
    struct counter acks = {0};
    uint64_t redis_acks = 0, now = now_ns(), from = now + (uint64_t)(seconds * 0.25e9), until = from + (uint64_t)(seconds * 1e9), moved = now;
    int is_redis = !strcmp(door, "redis");
    puts("ready"); /* whoever reads this looks at the server's CPU time now */
    fflush(stdout);
    while ((now = now_ns()) < until) {
        while (may_publish()) {
            size_t topic = published % (uint64_t)topics;
            sent_at[published++ % SENT_KEPT] = now_ns();
            send_all(publisher, texts[topic], lengths[topic]);
        }
        int found = epoll_wait(epoll_fd, events, 256, 100);
        moved = found > 0 ? now : moved;
        if (now - moved > STUCK_NS)
            fail("stuck", input);
        for (int each = 0; each < found; each++) {
            struct watcher *watcher = events[each].data.ptr;
            if (watcher) {
                receive(watcher, from, until);
                continue;
            }
            ssize_t got = recv(publisher, input, sizeof input - 1, 0);
            if (got <= 0)
                fail("the publisher", "the server closed it");
            input[got] = 0;
            if (is_redis) {
                redis_acks += count(&acks, input, (size_t)got, ":");
                acked = redis_acks / (uint64_t)batch;
            } else {
                acked += count(&acks, input, (size_t)got, "HTTP/1.1 20");
            }
        }
    }
}

static void read_options(int argc, char **argv) {
    struct { const char *name; int *value; } numbers[] = {
        {"--port=", &port}, {"--watchers=", &watcher_count}, {"--batch=", &batch}, {"--size=", &size}, {"--window=", &window}, {"--topics=", &topics}};
    for (int each = 1; each < argc; each++) {
        int known = 0;
        for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++)
            if (!strncmp(argv[each], numbers[n].name, strlen(numbers[n].name)))
                *numbers[n].value = atoi(argv[each] + strlen(numbers[n].name)), known = 1;
        if (!strncmp(argv[each], "--door=", 7))
            door = argv[each] + 7, known = 1;
        if (!strncmp(argv[each], "--seconds=", 10))
            seconds = atof(argv[each] + 10), known = 1;
        if (!known)
            fail("unknown option", argv[each]);
    }
    if (size < 16 || batch < 1 || watcher_count < 1 || topics < 1 || window < 1)
        fail("options", "out of range");
}

int main(int argc, char **argv) {
    read_options(argc, argv);
    int epoll_fd = epoll_create1(0), publisher = connected();
    char **texts = malloc((size_t)topics * sizeof *texts);
    size_t *lengths = malloc((size_t)topics * sizeof *lengths);
    watchers = calloc((size_t)watcher_count, sizeof *watchers);
    for (int topic = 0; topic < topics; topic++) {
        texts[topic] = publish_text(topic, &lengths[topic]);
        send_all(publisher, texts[topic], lengths[topic]); /* makes the topic */
        if (strcmp(door, "redis"))
            read_until(publisher, "\r\n\r\n");
    }
    usleep(200000);
    while (recv(publisher, input, sizeof input, MSG_DONTWAIT) > 0) {}
    for (int each = 0; each < watcher_count; each++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &watchers[each]};
        watchers[each].fd = connected();
        follow(watchers[each].fd);
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, watchers[each].fd, &event);
    }
    drain_until_quiet(epoll_fd);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, publisher, &event);
    run(epoll_fd, publisher, texts, lengths);
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    printf("{\"deliveries\":%llu,\"all_deliveries\":%llu,\"publishes\":%llu,\"seconds\":%.3f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f,\"cpu\":%.3f}\n",
        (unsigned long long)measured, (unsigned long long)delivered, (unsigned long long)published, seconds, histogram_us(&latencies, 0.5),
        histogram_us(&latencies, 0.99), (double)latencies.max_ns / 1000.0, cpu / (seconds * 1.25));
    return 0;
}
