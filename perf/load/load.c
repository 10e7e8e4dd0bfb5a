/* The load generator: one thread, epoll, any number of connections; prints one line of JSON.
 *
 *   closed loop   each connection keeps `depth` requests in flight; a reply sends the next
 *   open loop     --rate: request k is due at start + k / rate, whoever is free sends it, and its latency counts from when it was due:
 *                 a server that stalls pays for every request that it kept waiting (no coordinated omission)
 *
 * Replies that come within the measured seconds count, those of the warm-up do not. `cpu` is this process's own share of one CPU: near 1.0
 * the generator is what was measured.
 */
#include "wire.h"
#include "histogram.h"
#include <sched.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/uio.h>

#define WORST 10
#define STALL_NS 50000000
#define ERRORS_MAX 1000

struct connection {
    int fd, waits_for_room;
    struct template *writes, *reads; /* one a topic */
    uint32_t head, tail, sent; /* requests: answered, made, handed to the kernel */
    size_t sent_bytes;         /* of request `sent` */
    int replies_left;          /* of request `head` */
    uint64_t *due;             /* by request & mask: when it was sent, or was due */
    struct template **request; /* the same */
    char **scratch;            /* patched copies, one a request in flight */
    uint64_t cursor;
    uint64_t *expected;        /* the cursor that must come back */
    char *in;
    size_t in_bytes, in_room;
    struct parser parser;
};

static struct options options;
static struct template *writes, *reads;
static struct connection *connections;
static struct histogram latencies;
static uint32_t mask;
static uint64_t started, measured_from, measured_until, made, answered, records, bytes, errors, next_topic, in_flight;
static uint64_t worst_ns[WORST], worst_at[WORST];
static char first_error[200];
static int epoll_fd;

static void note_error(const char *text, size_t length) {
    if (errors++ == 0)
        snprintf(first_error, sizeof first_error, "%.*s", (int)(length < 180 ? length : 180), text);
    if (errors > ERRORS_MAX)
        fail("too many errors, the first", first_error);
}

static void measure(uint64_t now, uint64_t due, uint64_t count, size_t length) {
    uint64_t took = now - due;
    int least = 0;
    if (now < measured_from || now >= measured_until)
        return;
    histogram_add(&latencies, took);
    answered++;
    records += count;
    bytes += length;
    for (int each = 1; each < WORST; each++)
        if (worst_ns[each] < worst_ns[least])
            least = each;
    if (took <= worst_ns[least])
        return;
    for (int each = 0; each < WORST; each++) /* one entry a stall, not one for each connection that it held up */
        if (now - worst_at[each] < STALL_NS)
            least = each;
    if (took > worst_ns[least]) {
        worst_ns[least] = took;
        worst_at[least] = now;
    }
}

#include "wake.h"

static void make_request(struct connection *connection, uint64_t due) {
    uint32_t place = connection->tail & mask;
    int is_read = options.work == DIFF || options.work == STATE || (options.work == MIXED && made % 10 == 9);
    struct template *template = (is_read ? connection->reads : connection->writes) + next_topic++ % (uint64_t)options.topics;
    connection->request[place] = template;
    connection->due[place] = due;
    connection->expected[place] = 0;
    if (template->cursor) {
        if (connection->scratch[place] == NULL)
            connection->scratch[place] = malloc(template->length);
        memcpy(connection->scratch[place], template->bytes, template->length);
        if (options.work == DIFF) {
            if (connection->cursor + (uint64_t)options.limit > options.records_there)
                connection->cursor = 0;
            patch(&options, connection->scratch[place] + template->cursor, connection->cursor);
            connection->cursor += (uint64_t)options.limit;
            connection->expected[place] = connection->cursor;
        }
    }
    if (connection->tail == connection->head)
        connection->replies_left = template->replies;
    connection->tail++;
    made++;
    in_flight++;
}

static void send_requests(struct connection *connection) {
    while (connection->sent != connection->tail) {
        struct iovec parts[64];
        int count = 0;
        for (uint32_t each = connection->sent; each != connection->tail && count < 64; each++, count++) {
            struct template *template = connection->request[each & mask];
            char *text = template->cursor ? connection->scratch[each & mask] : template->bytes;
            size_t skip = each == connection->sent ? connection->sent_bytes : 0;
            parts[count] = (struct iovec){text + skip, template->length - skip};
        }
        ssize_t sent = writev(connection->fd, parts, count);
        if (sent < 0 && errno != EAGAIN)
            fail("send", strerror(errno));
        for (connection->sent_bytes += sent > 0 ? (size_t)sent : 0; connection->sent != connection->tail; connection->sent++) {
            size_t length = connection->request[connection->sent & mask]->length;
            if (connection->sent_bytes < length)
                break;
            connection->sent_bytes -= length;
        }
        if (sent < 0)
            break;
    }
    int waits = connection->sent != connection->tail;
    if (waits != connection->waits_for_room) {
        struct epoll_event event = {.events = EPOLLIN | (waits ? EPOLLOUT : 0), .data.ptr = connection};
        connection->waits_for_room = waits;
        epoll_ctl(epoll_fd, EPOLL_CTL_MOD, connection->fd, &event);
    }
}

static int may_send(uint64_t now) {
    return (options.requests ? made < options.requests : now < measured_until);
}

/* Fill a connection up: at once in a closed loop, with what is due in an open one. */
static void fill(struct connection *connection, uint64_t now) {
    uint32_t before = connection->tail;
    while (connection->tail - connection->head < (uint32_t)options.depth && may_send(now)) {
        uint64_t due = now;
        if (options.rate > 0) {
            due = started + (uint64_t)((double)made * 1e9 / options.rate);
            if (due > now)
                break;
        }
        make_request(connection, due);
    }
    if (connection->tail != before && !connection->waits_for_room)
        send_requests(connection);
}

static void take(struct connection *connection, struct reply *reply, const char *text, uint64_t now) {
    uint32_t place = connection->head & mask;
    struct template *template = connection->request[place];
    if (connection->head == connection->tail && !reply->partial)
        fail("a reply without a request", text);
    if (reply->error)
        note_error(text, reply->length);
    else if (reply->next_from_seq && connection->expected[place] && !options.trust && reply->next_from_seq != connection->expected[place])
        note_error("the page ends elsewhere than it should", 39);
    if (reply->partial || --connection->replies_left > 0)
        return;
    measure(now, connection->due[place], (uint64_t)(options.work == STATE ? 0 : template->is_read ? options.limit : options.batch),
            template->length + reply->length);
    connection->head++;
    in_flight--;
    if (connection->head != connection->tail)
        connection->replies_left = connection->request[connection->head & mask]->replies;
}

static void receive(struct connection *connection) {
    size_t room = connection->in_room - connection->in_bytes, at = 0;
    struct reply reply;
    ssize_t got = recv(connection->fd, connection->in + connection->in_bytes, room, 0);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0)
        fail("the server closed a connection", got < 0 ? strerror(errno) : "end of stream");
    connection->in_bytes += (size_t)got;
    uint64_t now = now_ns();
    while (take_reply(&options, &connection->parser, connection->in + at, connection->in_bytes - at, &reply)) {
        take(connection, &reply, connection->in + at, now);
        at += reply.length;
    }
    connection->in_bytes -= at;
    memmove(connection->in, connection->in + at, connection->in_bytes);
    if (connection->in_bytes * 2 > connection->in_room) {
        connection->in_room *= 2;
        connection->in = realloc(connection->in, connection->in_room);
    }
    fill(connection, now);
}

static void make_templates(int number, struct template **to_write, struct template **to_read) {
    *to_write = calloc((size_t)options.topics, sizeof **to_write);
    *to_read = calloc((size_t)options.topics, sizeof **to_read);
    for (int topic = 0; topic < options.topics; topic++) {
        (*to_write)[topic] = make_template(&options, topic, 0, number);
        (*to_read)[topic] = make_template(&options, topic, 1, number);
    }
}

static void open_connection(struct connection *connection) {
    size_t slots = (size_t)mask + 1;
    *connection = (struct connection){.fd = connect_to(&options, (int)(connection - connections)), .in_room = 1 << 16, .writes = writes, .reads = reads};
    if (options.protocol == NATS) /* each publishes with an inbox of its own */
        make_templates((int)(connection - connections), &connection->writes, &connection->reads);
    connection->due = calloc(slots, 8);
    connection->expected = calloc(slots, 8);
    connection->request = calloc(slots, sizeof(void *));
    connection->scratch = calloc(slots, sizeof(void *));
    connection->in = malloc(connection->in_room);
    connection->cursor = options.records_there / (uint64_t)options.connections * (uint64_t)(connection - connections);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, connection->fd, &event);
}

static void run(void) {
    struct epoll_event events[256];
    uint64_t first_free = 0;
    for (int each = 0; each < options.connections; each++)
        fill(connections + each, now_ns());
    while (1) {
        struct timespec wait = {0, 100000000};
        uint64_t now = now_ns();
        if (!may_send(now) && (in_flight == 0 || now > measured_until + 5000000000u))
            break;
        if (options.rate > 0) {
            uint64_t due = started + (uint64_t)((double)made * 1e9 / options.rate);
            wait.tv_nsec = due > now ? (long)(due - now < 100000000 ? due - now : 100000000) : in_flight ? 100000000 : 0;
        }
        int count = epoll_pwait2(epoll_fd, events, 256, &wait, NULL);
        for (int each = 0; each < count; each++) {
            struct connection *connection = events[each].data.ptr;
            if (events[each].events & EPOLLOUT)
                send_requests(connection);
            if (events[each].events & ~(uint32_t)EPOLLOUT)
                receive(connection);
        }
        if (options.rate > 0) { /* what has become due goes to the connections in turn */
            now = now_ns();
            for (int each = 0; each < options.connections; each++) {
                struct connection *connection = connections + (first_free + (uint64_t)each) % (uint64_t)options.connections;
                uint64_t before = made;
                if (connection->tail - connection->head < (uint32_t)options.depth)
                    fill(connection, now);
                if (made == before && may_send(now) && started + (uint64_t)((double)made * 1e9 / options.rate) > now)
                    break;
            }
            first_free++;
        }
    }
}

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) + (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void print(double seconds, double cpu) {
    printf("{\"requests\": %llu, \"records\": %llu, \"bytes\": %llu, \"seconds\": %.4f, \"errors\": %llu, \"cpu\": %.3f",
           (unsigned long long)answered, (unsigned long long)records, (unsigned long long)bytes, seconds, (unsigned long long)errors, cpu / seconds);
    printf(", \"p50_us\": %.2f, \"p90_us\": %.2f, \"p99_us\": %.2f, \"p999_us\": %.2f, \"max_us\": %.2f", histogram_us(&latencies, 0.5),
           histogram_us(&latencies, 0.9), histogram_us(&latencies, 0.99), histogram_us(&latencies, 0.999), (double)latencies.max_ns / 1000);
    printf(", \"worst\": [");
    for (int each = 0, shown = 0; each < WORST; each++) /* [when, as monotonic seconds; how long] */
        if (worst_ns[each])
            printf("%s[%.6f, %.1f]", shown++ ? ", " : "", (double)worst_at[each] / 1e9, (double)worst_ns[each] / 1000);
    for (char *at = first_error; *at; at++)
        if (*at == '"' || *at == '\\' || (unsigned char)*at < 32)
            *at = '.';
    printf("], \"first_error\": \"%s\"}\n", first_error);
}

int main(int argc, char **argv) {
    read_options(&options, argc, argv);
    if (options.pin >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(options.pin, &set);
        sched_setaffinity(0, sizeof set, &set);
    }
    for (mask = 1; mask < (uint32_t)options.depth; mask *= 2) {}
    mask--;
    make_templates(0, &writes, &reads);
    epoll_fd = epoll_create1(0);
    connections = calloc((size_t)options.connections, sizeof *connections);
    if (options.work != WAKE)
        for (int each = 0; each < options.connections; each++)
            open_connection(connections + each);
    started = now_ns();
    measured_from = started + (uint64_t)(options.warmup * 1e9) * (options.requests == 0);
    measured_until = options.requests ? UINT64_MAX >> 1 : measured_from + (uint64_t)(options.seconds * 1e9);
    double cpu = cpu_seconds();
    if (options.work == WAKE)
        run_wake();
    else
        run();
    double seconds = options.requests || options.work == WAKE ? (double)(now_ns() - started) / 1e9 : options.seconds;
    print(seconds, (cpu_seconds() - cpu) * seconds / ((double)(now_ns() - started) / 1e9));
    return 0;
}
