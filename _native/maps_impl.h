/* The SIGBUS guard: a page of a mapped file that the disk cannot give back becomes an error value (page of truth: maps.pxd). */
#ifndef TOPICSD_MAPS_IMPL_H
#define TOPICSD_MAPS_IMPL_H

#include <stddef.h>
#include <stdint.h>

typedef int (*maps_guarded)(void *argument);

/* Install the handler once a process, before the first guarded call. 0 or -errno. */
int maps_guard_install(void);

/* What `function` returns, or -EIO when it touched a page that cannot be read. The function must hold no lock and own no memory
 * that only its own locals know: it may end at any load from a map. */
int maps_guarded_call(maps_guarded function, void *argument);

/* Map `path` for reading, at most `bytes_max` of it. The map's address, or NULL with -errno in `*failure`. */
const uint8_t *maps_open(const char *path, uint64_t bytes_max, uint64_t *bytes, int *failure);
void maps_close(const uint8_t *base, uint64_t bytes);

#endif
