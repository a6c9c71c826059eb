/* Preloaded into every measured process: counts what reaches the disk and, when asked, slows each flush or logs the
 * order of writes, flushes and marks, so that the bench need not believe what a peer says about its durability.
 *
 *   BENCH_SHIM_COUNTERS  file of shared counters (see struct counters; read by shim.py)
 *   BENCH_SHIM_DELAY_US  each fsync and fdatasync takes so much longer
 *   BENCH_SHIM_LOG       file that gets a line per event: "<monotonic ns> <thread id> <event> <path> [mark]"
 *   BENCH_SHIM_MARKS     comma separated prefixes; where a WAL page holds prefix + MARK_ID characters, it is logged
 *
 * Events: W commit frame written, M page with a mark written, B flush begins, F flush ended.
 * A SQLite commit is a WAL frame header with a database size, or a rollback journal unlinked. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WAL_FRAME_HEADER 24
#define MARK_ID 12
#define MAX_MARKS 8

struct counters {
    _Atomic uint64_t flushes, commits, wal_bytes, datagrams;
};

static struct counters private_counters;
static struct counters *counters = &private_counters;
static long delay_us;
static int log_fd = -1;
static char marks_text[256];
static char *marks[MAX_MARKS];

static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_write)(int, const void *, size_t);
static int (*real_unlink)(const char *);
static ssize_t (*real_send)(int, const void *, size_t, int);
static ssize_t (*real_sendto)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);

static void open_counters(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct counters)) != 0) return;
    void *shared = mmap(NULL, sizeof(struct counters), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (shared != MAP_FAILED) counters = shared;
}

static void open_log(const char *path) {
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return;
    log_fd = fcntl(fd, F_DUPFD_CLOEXEC, 900);
    if (log_fd < 0) log_fd = fd;
    else close(fd);
}

static void read_marks(const char *text) {
    snprintf(marks_text, sizeof marks_text, "%s", text);
    int n = 0;
    for (char *word = strtok(marks_text, ","); word && n < MAX_MARKS - 1; word = strtok(NULL, ",")) marks[n++] = word;
}

__attribute__((constructor)) static void start(void) {
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_write = dlsym(RTLD_NEXT, "write");
    real_unlink = dlsym(RTLD_NEXT, "unlink");
    real_send = dlsym(RTLD_NEXT, "send");
    real_sendto = dlsym(RTLD_NEXT, "sendto");
    const char *text;
    if ((text = getenv("BENCH_SHIM_COUNTERS"))) open_counters(text);
    if ((text = getenv("BENCH_SHIM_DELAY_US"))) delay_us = atol(text);
    if ((text = getenv("BENCH_SHIM_LOG"))) open_log(text);
    if ((text = getenv("BENCH_SHIM_MARKS"))) read_marks(text);
}

static int path_of(int fd, char *out) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    if (n < 0) return 0;
    out[n] = 0;
    return 1;
}

static int ends_with(const char *path, const char *suffix) {
    size_t n = strlen(path), m = strlen(suffix);
    return n >= m && strcmp(path + n - m, suffix) == 0;
}

static void note(const char *event, const char *path, const char *mark, int mark_size) {
    char line[PATH_MAX + 128];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int n = snprintf(line, sizeof line, "%lld %d %s %s %.*s\n",
                     (long long)now.tv_sec * 1000000000LL + now.tv_nsec, (int)syscall(SYS_gettid), event, path, mark_size, mark);
    if (real_write(log_fd, line, (size_t)n) != n) _exit(97);
}

static void note_marks(const char *path, const char *page, size_t size) {
    for (int k = 0; marks[k]; k++) {
        size_t length = strlen(marks[k]);
        const char *at = page, *end = page + size;
        while ((at = memmem(at, (size_t)(end - at), marks[k], length))) {
            if (at + length + MARK_ID > end) break;
            note("M", path, at, (int)(length + MARK_ID));
            at += length;
        }
    }
}

static void look(int fd, const void *buffer, size_t size) {
    const unsigned char *bytes = buffer;
    char path[PATH_MAX];
    if (size == WAL_FRAME_HEADER) {
        if (!(bytes[4] | bytes[5] | bytes[6] | bytes[7])) return;
        if (!path_of(fd, path) || !ends_with(path, "-wal")) return;
        atomic_fetch_add(&counters->commits, 1);
        if (log_fd >= 0) note("W", path, "", 0);
    } else if (size >= 512 && size <= 65536 && (size & (size - 1)) == 0) {
        if (log_fd < 0 && counters == &private_counters) return;
        if (!path_of(fd, path) || !ends_with(path, "-wal")) return;
        atomic_fetch_add(&counters->wal_bytes, size);
        if (log_fd >= 0) note_marks(path, buffer, size);
    }
}

static int flush(int (*real)(int), int fd) {
    char path[PATH_MAX] = "?";
    atomic_fetch_add(&counters->flushes, 1);
    if (log_fd >= 0 && path_of(fd, path)) note("B", path, "", 0);
    if (delay_us) {
        struct timespec wait = {delay_us / 1000000, (delay_us % 1000000) * 1000};
        nanosleep(&wait, NULL);
    }
    int result = real(fd);
    int saved = errno;
    if (log_fd >= 0 && result == 0) note("F", path, "", 0);
    errno = saved;
    return result;
}

int fsync(int fd) { return flush(real_fsync, fd); }

int fdatasync(int fd) { return flush(real_fdatasync, fd); }

ssize_t pwrite64(int fd, const void *buffer, size_t size, off_t offset) {
    look(fd, buffer, size);
    return real_pwrite(fd, buffer, size, offset);
}

ssize_t pwrite(int fd, const void *buffer, size_t size, off_t offset) {
    look(fd, buffer, size);
    return real_pwrite(fd, buffer, size, offset);
}

ssize_t write(int fd, const void *buffer, size_t size) {
    if (size == WAL_FRAME_HEADER || (size >= 512 && (size & (size - 1)) == 0)) look(fd, buffer, size);
    return real_write(fd, buffer, size);
}

int unlink(const char *path) {
    if (ends_with(path, "-journal")) {
        atomic_fetch_add(&counters->commits, 1);
        if (log_fd >= 0) note("W", path, "", 0);
    }
    return real_unlink(path);
}

static void count_datagram(int fd) {
    int domain = 0, type = 0;
    socklen_t size = sizeof(int);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) || domain != AF_UNIX) return;
    size = sizeof(int);
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) || type != SOCK_DGRAM) return;
    atomic_fetch_add(&counters->datagrams, 1);
}

ssize_t send(int fd, const void *buffer, size_t size, int flags) {
    count_datagram(fd);
    return real_send(fd, buffer, size, flags);
}

ssize_t sendto(int fd, const void *buffer, size_t size, int flags, const struct sockaddr *to, socklen_t length) {
    count_datagram(fd);
    return real_sendto(fd, buffer, size, flags, to, length);
}
