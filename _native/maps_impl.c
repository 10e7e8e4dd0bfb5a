#define _GNU_SOURCE
#include "maps_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static __thread sigjmp_buf *volatile innermost; /* of this thread; NULL outside every guarded call */
static struct sigaction previous;
static int installed;

static void on_bus_error(int number, siginfo_t *info, void *context) {
    if (innermost != NULL)
        siglongjmp(*innermost, 1);
    if (previous.sa_flags & SA_SIGINFO) {
        previous.sa_sigaction(number, info, context);
    } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
        previous.sa_handler(number);
    } else { /* not ours: the same load faults again and the process dies as it would have */
        signal(SIGBUS, SIG_DFL);
        if (info->si_code <= 0) /* sent by kill(): nothing would fault again */
            raise(SIGBUS);
    }
}

int maps_guard_install(void) {
    struct sigaction action;
    if (installed)
        return 0;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK; /* NODEFER: the jump leaves the handler without unblocking the signal */
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, &action, &previous) != 0)
        return -errno;
    installed = 1;
    return 0;
}

int maps_guarded_call(maps_guarded function, void *argument) {
    sigjmp_buf here;
    sigjmp_buf *const outer = innermost;
    int result;
    if (sigsetjmp(here, 0)) {
        innermost = outer;
        return -EIO;
    }
    innermost = &here;
    result = function(argument);
    innermost = outer;
    return result;
}

const uint8_t *maps_open(const char *path, uint64_t bytes_max, uint64_t *bytes, int *failure) {
    struct stat status;
    void *base;
    int fd;
    do
        fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        *failure = -errno;
        return NULL;
    }
    if (fstat(fd, &status) != 0) {
        *failure = -errno;
        close(fd);
        return NULL;
    }
    *bytes = (uint64_t)status.st_size < bytes_max ? (uint64_t)status.st_size : bytes_max;
    if (*bytes == 0) {
        *failure = -ENODATA;
        close(fd);
        return NULL;
    }
    base = mmap(NULL, *bytes, PROT_READ, MAP_SHARED, fd, 0);
    *failure = base == MAP_FAILED ? -errno : 0;
    close(fd); /* the map keeps the file; at `ulimit -n 256` no descriptor may stay */
    return base == MAP_FAILED ? NULL : base;
}

void maps_close(const uint8_t *base, uint64_t bytes) { munmap((void *)base, bytes); }
