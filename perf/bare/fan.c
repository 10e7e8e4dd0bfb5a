/* The physical limit of fan-out: a server in C that does one send(2) a watcher for each publish, and keeps nothing.
 *
 * A connection that sends "WATCH\n" is a watcher. Any other sends HTTP POSTs, whose records go to all watchers in an event of the form that topicsd's
 * have; then it is answered. Prints its port, then serves until it is killed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS_MAX 16384
#define IN_BYTES (1 << 20)

static struct connection { char *in; size_t in_bytes; int place; } connections[CONNECTIONS_MAX]; /* by fd; place: of a watcher, from 1 */
static int watching[CONNECTIONS_MAX], watching_count;

static void send_all(int fd, const char *bytes, size_t length) {
    while (length) {
        ssize_t sent = send(fd, bytes, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            struct pollfd waits = {.fd = fd, .events = POLLOUT};
            poll(&waits, 1, 1000);
            continue;
        }
        if (sent <= 0)
            return; /* it has left */
        bytes += sent;
        length -= (size_t)sent;
    }
}

static size_t take_publish(int fd, char *text, size_t length) {
    static char event[2 * IN_BYTES];
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    char *end = memmem(text, length, "\r\n\r\n", 4), *told = end ? strcasestr(text, "content-length:") : NULL;
    if (told == NULL)
        return 0;
    size_t head = (size_t)(end - text) + 4, body = strtoull(told + 15, NULL, 10);
    if (length < head + body)
        return 0;
    char *records = memmem(text + head, body, "[", 1), *last = memrchr(text + head, ']', body);
    if (records && last) {
        size_t bytes = (size_t)sprintf(event, "id: eyJmYW4iOjEyMzQ1NiwiJGVwb2NocyI6eyJmYW4iOjE3fX0\nevent: record\ndata: {\"topic\":\"fan\",\"records\":");
        memcpy(event + bytes, records, (size_t)(last - records) + 1);
        bytes += (size_t)(last - records) + 1;
        bytes += (size_t)sprintf(event + bytes, ",\"from_seq\":123455,\"to_seq\":123456,\"head_seq\":123456}\n\n");
        for (int each = 0; each < watching_count; each++)
            send_all(watching[each], event, bytes);
    }
    send_all(fd, answer, sizeof answer - 1);
    return head + body;
}

static void left(int fd) {
    struct connection *connection = &connections[fd];
    if (connection->place) {
        int last = watching[--watching_count];
        watching[connection->place - 1] = last;
        connections[last].place = connection->place;
        connection->place = 0;
    }
    connection->in_bytes = 0;
    close(fd);
}

static void receive(int fd) {
    struct connection *connection = &connections[fd];
    if (connection->in == NULL)
        connection->in = malloc(IN_BYTES + 1);
    ssize_t got = recv(fd, connection->in + connection->in_bytes, IN_BYTES - connection->in_bytes, 0);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0) {
        left(fd);
        return;
    }
    connection->in_bytes += (size_t)got;
    connection->in[connection->in_bytes] = 0;
    if (!strcmp(connection->in, "WATCH\n")) {
        watching[watching_count++] = fd;
        connection->place = watching_count;
        connection->in_bytes = 0;
        send_all(fd, "ok\n", 3);
        return;
    }
    size_t at = 0;
    for (size_t used; at < connection->in_bytes && (used = take_publish(fd, connection->in + at, connection->in_bytes - at)); at += used) {}
    connection->in_bytes -= at;
    memmove(connection->in, connection->in + at, connection->in_bytes + 1);
}

int main(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int epoll_fd = epoll_create1(0), listener = socket(AF_INET, SOCK_STREAM, 0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[256];
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1024))
        return perror("listen"), 1;
    getsockname(listener, (struct sockaddr *)&address, &size);
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &event);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    while (1) {
        int count = epoll_wait(epoll_fd, events, 256, -1);
        for (int each = 0; each < count; each++) {
            if (events[each].data.fd != listener) {
                receive(events[each].data.fd);
                continue;
            }
            int one = 1, accepted = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
            if (accepted < 0 || accepted >= CONNECTIONS_MAX)
                continue;
            setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            event = (struct epoll_event){.events = EPOLLIN, .data.fd = accepted};
            epoll_ctl(epoll_fd, EPOLL_CTL_ADD, accepted, &event);
        }
    }
}
