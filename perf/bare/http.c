/* The physical limit: an HTTP server in C that reads what topicsd reads, sends as many bytes as topicsd sends, and keeps nothing.
 *
 *   alone      answers at once
 *   handover   every request goes through a ring to a second process, which answers through another: futex there, eventfd back,
 *              each rung only if the sleeper says that it sleeps. What a design with a writer process cannot be faster than.
 *
 * A POST to …/diff with "wait_ms" (other than 0) waits for the next append, as a long poll does. Prints its port, then serves until it is killed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/futex.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <signal.h>
#include <unistd.h>

#define CONNECTIONS_MAX 4096
#define SLOTS 65536
#define COPIED_MAX 512

struct connection {
    int fd, parked;
    char *in, *out;
    size_t in_bytes, in_room, out_bytes, out_sent, out_room;
};

struct slot {
    uint32_t connection, bytes;
    char copy[COPIED_MAX];
};

struct shared { /* of the two processes; head and tail count for ever */
    _Alignas(64) _Atomic uint64_t there_tail;
    _Alignas(64) _Atomic uint64_t back_tail;
    _Alignas(64) _Atomic uint32_t there_asleep, bell;
    _Alignas(64) _Atomic uint32_t back_asleep;
    _Alignas(64) uint64_t seq;
    struct slot slots[SLOTS];
    uint32_t back[SLOTS];
};

static struct connection connections[CONNECTIONS_MAX]; /* by fd */
static struct shared *shared;
static int epoll_fd, back_fd = -1, handover;
static uint32_t parked[CONNECTIONS_MAX], parked_count;
static uint64_t back_head, there_known;
static char *append_answer, *diff_answer, *state_answer;
static size_t append_bytes, diff_bytes, state_bytes;

static char *answer(size_t body_bytes, const char *start, size_t *length) {
    char head[200];
    int head_bytes = snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", body_bytes);
    char *text = malloc((size_t)head_bytes + body_bytes);
    memcpy(text, head, (size_t)head_bytes);
    memset(text + head_bytes, ' ', body_bytes);
    memcpy(text + head_bytes, start, strlen(start) < body_bytes ? strlen(start) : body_bytes);
    *length = (size_t)head_bytes + body_bytes;
    return text;
}

static void send_out(struct connection *connection) {
    while (connection->out_sent < connection->out_bytes) {
        ssize_t sent = send(connection->fd, connection->out + connection->out_sent, connection->out_bytes - connection->out_sent, MSG_NOSIGNAL);
        if (sent < 0) {
            struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.fd = connection->fd};
            if (errno == EAGAIN)
                epoll_ctl(epoll_fd, EPOLL_CTL_MOD, connection->fd, &event);
            return;
        }
        connection->out_sent += (size_t)sent;
    }
    connection->out_bytes = connection->out_sent = 0;
}

static void add_out(struct connection *connection, const char *text, size_t length) {
    if (connection->out_bytes + length > connection->out_room)
        connection->out = realloc(connection->out, connection->out_room = (connection->out_bytes + length) * 2);
    memcpy(connection->out + connection->out_bytes, text, length);
    connection->out_bytes += length;
}

static void wake_parked(void) {
    for (uint32_t each = 0; each < parked_count; each++) {
        add_out(connections + parked[each], diff_answer, diff_bytes);
        send_out(connections + parked[each]);
    }
    parked_count = 0;
}

/* ---- the second process */

static void second_process(void) {
    uint64_t head = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (1) {
        uint32_t seen = atomic_load(&shared->bell);
        uint64_t tail = atomic_load_explicit(&shared->there_tail, memory_order_acquire), back = shared->back_tail;
        if (head == tail) {
            atomic_store(&shared->there_asleep, 1);
            if (atomic_load(&shared->there_tail) == head)
                syscall(SYS_futex, &shared->bell, FUTEX_WAIT, seen, NULL, NULL, 0);
            atomic_store(&shared->there_asleep, 0);
            continue;
        }
        for (; head != tail; head++) {
            shared->seq++;
            shared->back[back++ % SLOTS] = shared->slots[head % SLOTS].connection;
        }
        atomic_store_explicit(&shared->back_tail, back, memory_order_seq_cst);
        if (atomic_exchange(&shared->back_asleep, 0))
            eventfd_write(back_fd, 1);
    }
}

static void hand_over(struct connection *connection, const char *text, size_t length) {
    struct slot *slot = &shared->slots[there_known++ % SLOTS];
    slot->connection = (uint32_t)connection->fd;
    slot->bytes = (uint32_t)length;
    memcpy(slot->copy, text, length < COPIED_MAX ? length : COPIED_MAX);
}

static void ring_second(void) {
    if (atomic_load_explicit(&shared->there_tail, memory_order_relaxed) == there_known)
        return;
    atomic_store_explicit(&shared->there_tail, there_known, memory_order_seq_cst);
    if (atomic_load(&shared->there_asleep)) {
        atomic_fetch_add(&shared->bell, 1);
        syscall(SYS_futex, &shared->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
}

static int take_back(void) {
    uint64_t tail = atomic_load_explicit(&shared->back_tail, memory_order_acquire);
    uint64_t first = back_head;
    for (; back_head != tail; back_head++)
        add_out(connections + shared->back[back_head % SLOTS], append_answer, append_bytes);
    for (uint64_t each = first; each != tail; each++)
        if (connections[shared->back[each % SLOTS]].out_bytes)
            send_out(connections + shared->back[each % SLOTS]);
    if (first != tail)
        wake_parked();
    return first != tail;
}

/* ---- requests */

static size_t take_request(struct connection *connection, char *text, size_t length) {
    char *end = memmem(text, length, "\r\n\r\n", 4);
    if (end == NULL)
        return 0;
    size_t body = 0, head = (size_t)(end - text) + 4;
    for (char *line = memchr(text, '\n', head); line && line < end; line = memchr(line + 1, '\n', (size_t)(end + 4 - line - 1)))
        if (!strncasecmp(line + 1, "content-length:", 15))
            body = strtoull(line + 16, NULL, 10);
    if (length < head + body)
        return 0;
    char *path_end = memchr(text + 5, ' ', head - 5);
    if (text[0] == 'G') {
        add_out(connection, state_answer, state_bytes);
    } else if (path_end && !memcmp(path_end - 5, "/diff", 5)) {
        char *wait = memmem(text + head, body < 200 ? body : 200, "\"wait_ms\":", 10);
        if (wait && wait[10] != '0' && parked_count < CONNECTIONS_MAX)
            parked[parked_count++] = (uint32_t)connection->fd;
        else
            add_out(connection, diff_answer, diff_bytes);
    } else if (handover) {
        hand_over(connection, text + head, body);
    } else {
        add_out(connection, append_answer, append_bytes);
        wake_parked();
    }
    return head + body;
}

static void receive(struct connection *connection) {
    if (connection->in_room - connection->in_bytes < 16384)
        connection->in = realloc(connection->in, connection->in_room = connection->in_room * 2 + 65536);
    ssize_t got = recv(connection->fd, connection->in + connection->in_bytes, connection->in_room - connection->in_bytes, 0);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0) {
        close(connection->fd);
        connection->in_bytes = connection->out_bytes = connection->out_sent = 0;
        return;
    }
    connection->in_bytes += (size_t)got;
    size_t at = 0;
    for (size_t used; at < connection->in_bytes && (used = take_request(connection, connection->in + at, connection->in_bytes - at)); at += used) {}
    connection->in_bytes -= at;
    memmove(connection->in, connection->in + at, connection->in_bytes);
    send_out(connection);
}

static void serve(int listener) {
    struct epoll_event events[256];
    while (1) {
        int timeout = -1;
        if (handover) {
            while (take_back()) {}
            atomic_store(&shared->back_asleep, 1);
            if (atomic_load(&shared->back_tail) != back_head)
                timeout = 0;
        }
        int count = epoll_wait(epoll_fd, events, 256, timeout);
        for (int each = 0; each < count; each++) {
            int fd = events[each].data.fd;
            uint64_t ignored;
            if (fd == back_fd) {
                eventfd_read(fd, &ignored);
                continue;
            }
            if (fd == listener) {
                int one = 1, accepted = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
                struct epoll_event event = {.events = EPOLLIN, .data.fd = accepted};
                if (accepted < 0 || accepted >= CONNECTIONS_MAX)
                    continue;
                setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                connections[accepted].fd = accepted;
                epoll_ctl(epoll_fd, EPOLL_CTL_ADD, accepted, &event);
                continue;
            }
            if (events[each].events & EPOLLOUT) {
                struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
                epoll_ctl(epoll_fd, EPOLL_CTL_MOD, fd, &event);
                send_out(connections + fd);
            }
            if (events[each].events & ~(uint32_t)EPOLLOUT)
                receive(connections + fd);
        }
        if (handover)
            ring_second();
    }
}

int main(int argc, char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (argc < 3) {
        fprintf(stderr, "usage: bare_http alone|handover DIFF_BYTES [APPEND_BYTES STATE_BYTES]\n");
        return 2;
    }
    handover = !strcmp(argv[1], "handover");
    diff_answer = answer(strtoull(argv[2], NULL, 10), "{\"records\":[],\"next_from_seq\":0}", &diff_bytes);
    append_answer = answer(argc > 3 ? strtoull(argv[3], NULL, 10) : 190, "{\"first_seq\":1}", &append_bytes);
    state_answer = answer(argc > 4 ? strtoull(argv[4], NULL, 10) : 600, "{\"head_seq\":1}", &state_bytes);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1024))
        return perror("listen"), 1;
    getsockname(listener, (struct sockaddr *)&address, &size);
    epoll_fd = epoll_create1(0);
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &(struct epoll_event){.events = EPOLLIN, .data.fd = listener});
    if (handover) {
        shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        back_fd = eventfd(0, EFD_NONBLOCK);
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, back_fd, &(struct epoll_event){.events = EPOLLIN, .data.fd = back_fd});
        if (fork() == 0)
            second_process();
    }
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    serve(listener);
}
