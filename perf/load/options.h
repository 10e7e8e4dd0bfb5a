/* What the load generator is asked to do, and the clock. */
#pragma once
#include <getopt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum protocol { HTTP, REDIS, NATS };
enum work { APPEND, DIFF, STATE, MIXED, WAKE };

struct options {
    enum protocol protocol;
    enum work work;
    const char *host, *topic;
    int port, connections, depth, batch, size, limit, topics, pin;
    double seconds, warmup, rate;
    uint64_t requests;      /* stop after so many (0: by time); for filling a topic */
    uint64_t records_there; /* diff: the topic holds seqs 1 to this; cursors walk round and round */
    int trust;              /* the server is a stand-in: do not look at next_from_seq */
    int explicit_ids;       /* redis: ids 0-1, 0-2 ..., so that a reader can count */
};

static inline uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void fail(const char *what, const char *why) {
    fprintf(stderr, "load: %s: %s\n", what, why);
    exit(1);
}

static int named(const char *value, const char *const *names, const char *option) {
    for (int index = 0; names[index]; index++)
        if (!strcmp(names[index], value))
            return index;
    fail(option, value);
    return -1;
}

static void read_options(struct options *options, int argc, char **argv) {
    static const char *const protocols[] = {"http", "redis", "nats", NULL}, *const works[] = {"append", "diff", "state", "mixed", "wake", NULL};
    static const struct option known[] = {
        {"protocol", 1, 0, 'P'}, {"work", 1, 0, 'w'}, {"host", 1, 0, 'h'}, {"port", 1, 0, 'p'}, {"topic", 1, 0, 't'}, {"topics", 1, 0, 'T'},
        {"connections", 1, 0, 'c'}, {"depth", 1, 0, 'd'}, {"batch", 1, 0, 'b'}, {"size", 1, 0, 's'}, {"limit", 1, 0, 'l'}, {"pin", 1, 0, 'C'},
        {"seconds", 1, 0, 'S'}, {"warmup", 1, 0, 'W'}, {"rate", 1, 0, 'r'}, {"requests", 1, 0, 'n'}, {"records-there", 1, 0, 'R'},
        {"trust", 0, 0, 'x'}, {"explicit-ids", 0, 0, 'X'}, {0, 0, 0, 0}};
    *options = (struct options){.host = "127.0.0.1", .topic = "bench", .port = 4000, .connections = 1, .depth = 1, .batch = 1, .size = 64,
                                .limit = 256, .topics = 1, .pin = -1, .seconds = 3, .warmup = 0.5};
    for (int option; (option = getopt_long_only(argc, argv, "", known, NULL)) != -1;)
        switch (option) {
        case 'P': options->protocol = (enum protocol)named(optarg, protocols, "protocol"); break;
        case 'w': options->work = (enum work)named(optarg, works, "work"); break;
        case 'h': options->host = optarg; break;
        case 't': options->topic = optarg; break;
        case 'p': options->port = atoi(optarg); break;
        case 'T': options->topics = atoi(optarg); break;
        case 'c': options->connections = atoi(optarg); break;
        case 'd': options->depth = atoi(optarg); break;
        case 'b': options->batch = atoi(optarg); break;
        case 's': options->size = atoi(optarg); break;
        case 'l': options->limit = atoi(optarg); break;
        case 'C': options->pin = atoi(optarg); break;
        case 'S': options->seconds = atof(optarg); break;
        case 'W': options->warmup = atof(optarg); break;
        case 'r': options->rate = atof(optarg); break;
        case 'n': options->requests = strtoull(optarg, NULL, 10); break;
        case 'R': options->records_there = strtoull(optarg, NULL, 10); break;
        case 'x': options->trust = 1; break;
        case 'X': options->explicit_ids = 1; break;
        default: exit(2);
        }
    if (options->connections < 1 || options->depth < 1 || options->batch < 1 || options->size < 9 || options->topics < 1 || options->limit < 1)
        fail("options", "connections, depth, batch, topics and limit are at least 1, size at least 9");
    if (options->work == DIFF && options->records_there < (uint64_t)options->limit)
        fail("records-there", "diff needs a topic that holds at least `limit` records");
}
