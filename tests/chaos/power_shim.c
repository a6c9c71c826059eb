/* Preloaded into hosts: records every write and flush of ledger files, in one order for all processes, so that the
 * files can be cut back to what would have survived a power loss at any moment.
 *
 *   POWER_SHIM_LOG     file of records, each appended by one write (see struct record; read by power.py)
 *   POWER_SHIM_FOLDER  only files below it are recorded
 *
 * Kinds: W bytes written, T file cut to a length, B flush begins, F flush ended, A bytes appended to a .txt file (what
 * a client or a tool says of itself). A record is appended after its write and before its flush begins: what stands
 * before a B was written before that flush. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct record {
    uint32_t thread;
    uint16_t path_size;
    uint8_t kind, pad;
    uint64_t offset;
    uint64_t size; /* bytes that follow the path */
} __attribute__((packed));

static int log_fd = -1;
static const char *folder;
static size_t folder_size;

static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_ftruncate64)(int, off_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_write)(int, const void *, size_t);

__attribute__((constructor)) static void start(void) {
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_ftruncate64 = dlsym(RTLD_NEXT, "ftruncate64");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_write = dlsym(RTLD_NEXT, "write");
    const char *log = getenv("POWER_SHIM_LOG");
    folder = getenv("POWER_SHIM_FOLDER");
    if (!log || !folder) return;
    folder_size = strlen(folder);
    int fd = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) log_fd = fcntl(fd, F_DUPFD_CLOEXEC, 900);
}

static int ends_with(const char *path, const char *suffix) {
    size_t n = strlen(path), m = strlen(suffix);
    return n >= m && strcmp(path + n - m, suffix) == 0;
}

/* 'W' for a ledger file, 'A' for a text file, 0 for what is not recorded. */
static int kind_of(int fd, char *path) {
    if (log_fd < 0 || fd == log_fd) return 0;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    if (n < 0) return 0;
    path[n] = 0;
    if (strncmp(path, folder, folder_size) != 0) return 0;
    if (ends_with(path, ".db") || ends_with(path, ".db-wal")) return 'W';
    return ends_with(path, ".txt") ? 'A' : 0;
}

static void note(int kind, const char *path, uint64_t offset, const void *data, size_t size) {
    struct record head = {(uint32_t)syscall(SYS_gettid), (uint16_t)strlen(path), (uint8_t)kind, 0, offset, size};
    struct iovec parts[3] = {{&head, sizeof head}, {(void *)path, head.path_size}, {(void *)data, size}};
    ssize_t whole = (ssize_t)(sizeof head + head.path_size + size);
    int saved = errno;
    if (writev(log_fd, parts, size ? 3 : 2) != whole) _exit(97);
    errno = saved;
}

static int flush(int (*real)(int), int fd) {
    char path[PATH_MAX];
    int kind = kind_of(fd, path);
    if (kind == 'W') note('B', path, 0, "", 0);
    int result = real(fd);
    if (kind == 'W' && result == 0) note('F', path, 0, "", 0);
    return result;
}

int fsync(int fd) { return flush(real_fsync, fd); }

int fdatasync(int fd) { return flush(real_fdatasync, fd); }

static ssize_t place(int fd, const void *buffer, size_t size, off_t offset) {
    ssize_t result = real_pwrite(fd, buffer, size, offset);
    char path[PATH_MAX];
    if (result > 0 && kind_of(fd, path) == 'W') note('W', path, (uint64_t)offset, buffer, (size_t)result);
    return result;
}

ssize_t pwrite64(int fd, const void *buffer, size_t size, off_t offset) { return place(fd, buffer, size, offset); }

ssize_t pwrite(int fd, const void *buffer, size_t size, off_t offset) { return place(fd, buffer, size, offset); }

ssize_t write(int fd, const void *buffer, size_t size) {
    char path[PATH_MAX];
    int kind = fd > 2 ? kind_of(fd, path) : 0;
    off_t before = kind == 'W' ? lseek(fd, 0, SEEK_CUR) : 0;
    ssize_t result = real_write(fd, buffer, size);
    if (result > 0 && kind) note(kind, path, (uint64_t)before, buffer, (size_t)result);
    return result;
}

int ftruncate64(int fd, off_t length) {
    int result = real_ftruncate64(fd, length);
    char path[PATH_MAX];
    if (result == 0 && kind_of(fd, path) == 'W') note('T', path, (uint64_t)length, "", 0);
    return result;
}

int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }
