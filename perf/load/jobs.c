/* Workers of a queue: each connection claims `--batch` jobs, acks them, claims again, until a claim comes back empty or `--requests` were made.
 *
 * Prints one line of JSON: requests a second (claims and acks alike), and the latencies of both. On a stand-in (--trust) a claim goes to …/diff, whose
 * answer there is as long as that of a claim, and the acks name made-up jobs.
 */
#pragma GCC diagnostic ignored "-Wunused-function" /* wire.h has more than this needs */
#include "wire.h"
#include "histogram.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define IN_ROOM (1 << 20)

struct worker {
    int fd, acking, ended;
    uint64_t sent_ns;
    struct template claim;
    char *in;
    size_t in_bytes;
    struct parser parser;
};

static struct options options;
static struct histogram claims, acks;
static uint64_t requests, jobs, errors;

static void post(struct worker *worker, const char *bytes, size_t length) {
    worker->sent_ns = now_ns();
    if (send(worker->fd, bytes, length, 0) != (ssize_t)length)
        fail("send", strerror(errno));
    requests++;
}

static void next_claim(struct worker *worker) {
    worker->acking = 0;
    if (options.requests && requests >= options.requests)
        worker->ended = 1;
    else
        post(worker, worker->claim.bytes, worker->claim.length);
}

/* Ack what the claim's answer names. */
static void ack(struct worker *worker, const char *text, size_t length, int number) {
    struct template request = {0}, body = {0};
    char path[300];
    int count = 0;
    put(&body, "{\"node\":\"w%d\",\"seqs\":[", number);
    for (const char *at = text; (at = memmem(at, (size_t)(text + length - at), "\"$seq\":", 7)) != NULL; at += 7)
        put(&body, "%s%llu", count++ ? "," : "", strtoull(at + 7, NULL, 10));
    for (; options.trust && count < options.batch; count++)
        put(&body, "%s%d", count ? "," : "", 100000 + count);
    put(&body, "]}");
    if (count == 0) {
        worker->ended = 1;
    } else {
        snprintf(path, sizeof path, "/v0/topics/%s/ack", options.topic);
        http_post(&request, path, body.bytes, body.length);
        jobs += (uint64_t)count;
        worker->acking = 1;
        post(worker, request.bytes, request.length);
        free(request.bytes);
    }
    free(body.bytes);
}

static void receive(struct worker *worker, int number) {
    ssize_t got = recv(worker->fd, worker->in + worker->in_bytes, IN_ROOM - worker->in_bytes, 0);
    struct reply reply;
    if (got <= 0)
        fail("the server closed a connection", got < 0 ? strerror(errno) : "end of stream");
    worker->in_bytes += (size_t)got;
    if (!take_reply(&options, &worker->parser, worker->in, worker->in_bytes, &reply))
        return;
    histogram_add(worker->acking ? &acks : &claims, now_ns() - worker->sent_ns);
    errors += (uint64_t)reply.error;
    if (reply.error && errors == 1)
        fprintf(stderr, "jobs: %.*s\n", (int)(reply.length < 300 ? reply.length : 300), worker->in);
    worker->in_bytes = 0; /* one request at a time: nothing follows */
    if (worker->acking || reply.error)
        next_claim(worker);
    else
        ack(worker, worker->in, reply.length, number);
}

int main(int argc, char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    struct epoll_event events[256];
    int epoll_fd = epoll_create1(0), one = 1, running;
    read_options(&options, argc, argv);
    struct worker *workers = calloc((size_t)options.connections, sizeof *workers);
    address.sin_port = htons((uint16_t)options.port);
    inet_pton(AF_INET, options.host, &address.sin_addr);
    uint64_t started = now_ns();
    for (int each = 0; each < options.connections; each++) {
        struct worker *worker = workers + each;
        struct template body = {0};
        char path[300];
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)each};
        worker->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(worker->fd, (struct sockaddr *)&address, sizeof address))
            fail("connect", strerror(errno));
        setsockopt(worker->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, worker->fd, &event);
        put(&body, "{\"node\":\"w%d\",\"max\":%d,\"lease_ms\":60000}", each, options.batch);
        snprintf(path, sizeof path, "/v0/topics/%s/%s", options.topic, options.trust ? "diff" : "claim");
        http_post(&worker->claim, path, body.bytes, body.length);
        worker->in = malloc(IN_ROOM);
        next_claim(worker);
    }
    do {
        int count = epoll_wait(epoll_fd, events, 256, 1000);
        for (int each = 0; each < count; each++)
            receive(workers + events[each].data.u32, (int)events[each].data.u32);
        running = 0;
        for (int each = 0; each < options.connections; each++)
            running += !workers[each].ended;
    } while (running);
    double seconds = (double)(now_ns() - started) / 1e9;
    printf("{\"requests\": %llu, \"jobs\": %llu, \"seconds\": %.4f, \"errors\": %llu, \"rate\": %.1f, \"claim_p50_us\": %.1f, \"claim_p99_us\": %.1f, "
           "\"ack_p50_us\": %.1f, \"ack_p99_us\": %.1f}\n",
           (unsigned long long)requests, (unsigned long long)jobs, seconds, (unsigned long long)errors, (double)requests / seconds,
           histogram_us(&claims, 0.5), histogram_us(&claims, 0.99), histogram_us(&acks, 0.5), histogram_us(&acks, 0.99));
    return 0;
}
