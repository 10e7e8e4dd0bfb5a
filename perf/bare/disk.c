/* The disk alone: pwrite and fdatasync of groups of frames on a file that was filled with zeroes ahead; and pwrite alone.
 *
 *   bare_disk FILE SECONDS BYTES_PER_GROUP      prints a line of JSON: groups/s with fdatasync, its p50 and p99, and GB/s of pwrite alone
 */
#define _GNU_SOURCE
#include "../load/histogram.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FILE_BYTES (64u << 20)

static struct histogram synced, written;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static double rate(int fd, const char *group, size_t length, double seconds, int sync, struct histogram *histogram) {
    uint64_t start = now_ns(), until = start + (uint64_t)(seconds * 1e9), groups = 0;
    for (off_t at = 0; now_ns() < until; groups++, at = (at + (off_t)length) % (off_t)(FILE_BYTES - length)) {
        uint64_t before = now_ns();
        if (pwrite(fd, group, length, at) != (ssize_t)length || (sync && fdatasync(fd))) {
            perror("disk");
            exit(1);
        }
        histogram_add(histogram, now_ns() - before);
    }
    return (double)groups / ((double)(now_ns() - start) / 1e9);
}

int main(int argc, char **argv) {
    if (argc != 4)
        return fprintf(stderr, "usage: bare_disk FILE SECONDS BYTES_PER_GROUP\n"), 2;
    double seconds = atof(argv[2]);
    size_t length = strtoull(argv[3], NULL, 10);
    char *zeroes = calloc(1, FILE_BYTES), *group = malloc(length);
    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    memset(group, 'x', length);
    if (fd < 0 || pwrite(fd, zeroes, FILE_BYTES, 0) != (ssize_t)FILE_BYTES || fsync(fd))
        return perror(argv[1]), 1;
    double groups = rate(fd, group, length, seconds, 1, &synced);
    double unsynced = rate(fd, group, length, seconds / 4, 0, &written);
    printf("{\"synced_groups_s\": %.1f, \"p50_us\": %.2f, \"p99_us\": %.2f, \"max_us\": %.2f, \"pwrite_groups_s\": %.1f, \"pwrite_gb_s\": %.3f}\n", groups,
           histogram_us(&synced, 0.5), histogram_us(&synced, 0.99), (double)synced.max_ns / 1000, unsynced, unsynced * (double)length / 1e9);
    close(fd);
    unlink(argv[1]);
    return 0;
}
