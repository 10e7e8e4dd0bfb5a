/* A room: speakers on one WebSocket each, a packet of sound every 20 ms, and everyone hears all others; prints "ready", and one line of JSON.
 *
 *   --port N  --speakers N  --packet_ms N  --size BYTES  --seconds S  --settle S
 *
 * Each follows the topic with its own node filtered out. A packet says when it was sent and by whom, so a delivery's latency, a packet of one's own
 * and one that comes twice or out of order are seen. `lost`: of what every other speaker has published, what had not come `settle` seconds behind
 * the last packet. The speakers are spread over the 20 ms. `late` packets went out more than one interval behind their time: the load generator
 * had no CPU left, and what it measures counts for nothing.
 */
#define _GNU_SOURCE
#include "basics.h"
#include "histogram.h"
#include <arpa/inet.h>
#include <errno.h>
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

#define SPEAKERS_MAX 1000
#define PIECE (1 << 18)
#define STAMP 48 /* bytes of "t":<20 digits>,"n":<8 digits>,"s":<4 digits> */

struct speaker {
    int fd;
    uint64_t due_ns, published, heard;
    char tail[STAMP];
    size_t tail_bytes;
    uint32_t *last; /* of each other speaker: the number of the last packet that came */
};

static int port, speaker_count = 100, packet_ms = 20, size = 160;
static double seconds = 3, settle = 10;
static struct speaker speakers[SPEAKERS_MAX];
static struct histogram latencies;
static uint64_t wrong_own, wrong_order, late;
static char input[PIECE + STAMP], frame[1 << 16];

static void send_all(int fd, const char *bytes, size_t length) {
    while (length) {
        ssize_t sent = send(fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
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

static void read_until(int fd, const char *text) {
    size_t length = 0;
    struct timeval patience = {.tv_sec = 20};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    do {
        ssize_t got = recv(fd, input + length, PIECE - 1 - length, 0);
        if (got <= 0)
            fail("a speaker was refused", strerror(errno));
        length += (size_t)got;
    } while (!memmem(input, length, text, strlen(text)));
}

/* Send one text message, masked by zeroes. */
static void say(int fd, const char *text, size_t length) {
    size_t head = length < 126 ? 2 : 4;
    frame[0] = (char)0x81;
    frame[1] = (char)(0x80 | (length < 126 ? length : 126));
    if (head == 4)
        frame[2] = (char)(length >> 8), frame[3] = (char)length;
    memset(frame + head, 0, 4);
    memcpy(frame + head + 4, text, length);
    send_all(fd, frame, head + 4 + length);
}

static void enter(int number) {
    static const char hello[] = "GET /v0/ws HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    struct speaker *speaker = &speakers[number];
    char text[256];
    int one = 1;
    speaker->fd = socket(AF_INET, SOCK_STREAM, 0);
    speaker->last = calloc((size_t)speaker_count, sizeof *speaker->last);
    if (speaker->fd < 0 || connect(speaker->fd, (struct sockaddr *)&address, sizeof address))
        fail("connect", strerror(errno));
    setsockopt(speaker->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    send_all(speaker->fd, hello, sizeof hello - 1);
    read_until(speaker->fd, "\r\n\r\n");
    int length = snprintf(text, sizeof text,
        "{\"op\":\"subscribe\",\"request_id\":1,\"topic\":\"room\",\"tail\":true,\"node\":\"u%03d\",\"include_meta\":false,\"limit\":1000}", number);
    say(speaker->fd, text, (size_t)length);
    read_until(speaker->fd, "caught_up");
}

static void speak(int number, uint64_t now) {
    static char text[1 << 15], sound[1 << 14];
    struct speaker *speaker = &speakers[number];
    memset(sound, 'A', (size_t)size);
    int length = snprintf(text, sizeof text,
        "{\"op\":\"publish\",\"topic\":\"room\",\"return_seqs\":false,\"records\":[{\"node\":\"u%03d\",\"data\":{\"t\":%020llu,\"n\":%08llu,\"s\":%04d,\"p\":\"%.*s\"}}]}",
        number, 10000000000000000000ull + now, 10000000ull + ++speaker->published, 1000 + number, size, sound);
    say(speaker->fd, text, (size_t)length);
}

/* Take what came: stamps of others' packets, also where they stand across two pieces. */
static void hear(int number) {
    struct speaker *speaker = &speakers[number];
    memcpy(input, speaker->tail, speaker->tail_bytes);
    ssize_t got = recv(speaker->fd, input + speaker->tail_bytes, PIECE, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0)
        fail("a speaker", "the server closed it");
    uint64_t now = now_ns();
    char *at = input, *end = input + speaker->tail_bytes + got, *found;
    while ((found = memmem(at, (size_t)(end - at), "\"t\":", 4)) && end - found >= STAMP) {
        uint64_t sent = strtoull(found + 4, NULL, 10) - 10000000000000000000ull;
        uint32_t packet = (uint32_t)(strtoull(found + 29, NULL, 10) - 10000000ull);
        int who = atoi(found + 42) - 1000;
        if (who < 0 || who >= speaker_count)
            fail("a packet", "that nobody sent");
        wrong_own += who == number;
        wrong_order += packet != speaker->last[who] + 1;
        speaker->last[who] = packet;
        speaker->heard++;
        histogram_add(&latencies, now - sent);
        at = found + STAMP;
    }
    size_t kept = (size_t)(end - at) < STAMP - 1 ? (size_t)(end - at) : STAMP - 1;
    memmove(speaker->tail, end - kept, kept);
    speaker->tail_bytes = kept;
}

static uint64_t missing(void) {
    uint64_t all = 0, heard = 0;
    for (int each = 0; each < speaker_count; each++)
        all += speakers[each].published, heard += speakers[each].heard;
    return all * (uint64_t)(speaker_count - 1) - heard;
}

static void run(int epoll_fd) {
    struct epoll_event events[256];
    uint64_t interval = (uint64_t)packet_ms * 1000000ull, begun = now_ns() + interval, until = begun + (uint64_t)(seconds * 1e9), now, last;
    for (int each = 0; each < speaker_count; each++)
        speakers[each].due_ns = begun + interval * (uint64_t)each / (uint64_t)speaker_count;
    puts("ready");
    fflush(stdout);
    last = until;
    while ((now = now_ns()) < until || (missing() && now < last + (uint64_t)(settle * 1e9))) {
        uint64_t next = now + 10000000;
        for (int each = 0; each < speaker_count && now < until; each++) {
            if (speakers[each].due_ns <= now) {
                late += now - speakers[each].due_ns > interval;
                speak(each, now);
                speakers[each].due_ns += interval;
            }
            next = speakers[each].due_ns < next ? speakers[each].due_ns : next;
        }
        int found = epoll_wait(epoll_fd, events, 256, next > now ? (int)((next - now) / 1000000) : 0);
        for (int each = 0; each < found; each++)
            hear((int)events[each].data.u32);
    }
}

int main(int argc, char **argv) {
    struct { const char *name; int *value; } numbers[] = {{"--port=", &port}, {"--speakers=", &speaker_count}, {"--packet_ms=", &packet_ms}, {"--size=", &size}};
    for (int each = 1; each < argc; each++) {
        for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++)
            if (!strncmp(argv[each], numbers[n].name, strlen(numbers[n].name)))
                *numbers[n].value = atoi(argv[each] + strlen(numbers[n].name));
        if (!strncmp(argv[each], "--seconds=", 10))
            seconds = atof(argv[each] + 10);
        if (!strncmp(argv[each], "--settle=", 9))
            settle = atof(argv[each] + 9);
    }
    if (speaker_count < 2 || speaker_count > SPEAKERS_MAX || size < 1 || size > 8192 || packet_ms < 1)
        fail("options", "out of range");
    int epoll_fd = epoll_create1(0);
    for (int each = 0; each < speaker_count; each++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)each};
        enter(each);
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, speakers[each].fd, &event);
    }
    run(epoll_fd);
    uint64_t published = 0, heard = 0;
    for (int each = 0; each < speaker_count; each++)
        published += speakers[each].published, heard += speakers[each].heard;
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    printf("{\"speakers\":%d,\"publishes\":%llu,\"deliveries\":%llu,\"all_deliveries\":%llu,\"lost\":%lld,\"own\":%llu,\"disordered\":%llu,\"late\":%llu,"
           "\"seconds\":%.3f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f,\"cpu\":%.3f}\n",
        speaker_count, (unsigned long long)published, (unsigned long long)heard, (unsigned long long)heard,
        (long long)missing(), (unsigned long long)wrong_own, (unsigned long long)wrong_order, (unsigned long long)late, seconds,
        histogram_us(&latencies, 0.5), histogram_us(&latencies, 0.99), (double)latencies.max_ns / 1000.0, cpu / seconds);
    return 0;
}
