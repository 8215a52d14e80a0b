// Fails or stalls one system call of the job's or of hangwatch's processes, and keeps a list of
// what they open, make, rename and remove. Loaded by LD_PRELOAD; harmless without its variables.
//
//   CAMPAIGN_LOG     file to which each call that counts is added: CALL ROLE WHAT PATH
//   CAMPAIGN_WHERE   directory of the run, shown as ~ in paths
//   CAMPAIGN_OURS    directories of hangwatch, with colons
//   CAMPAIGN_FAULT   ROLE CALL NTH ERRNO STALL_MS SHORT LASTING PATH, with spaces
//   CAMPAIGN_STRUCK  file that is made when the fault strikes; a fault that does not last
//                    strikes in the process that makes it
//
// A role is told by the command line: supervisor, watchdog, launcher, rank0, rank1, ... In a
// supervisor and a watchdog all calls count from the first on that concerns hangwatch's
// directories (of a supervisor: the run's), in the others those on paths in them. In a PATH each
// number is shown as #, what is random in a name as *.

#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { kPath = 2 * PATH_MAX, kLine = kPath + 128, kRole = 24 };
enum Base { kOther, kSupervisor, kWatchdog, kRanks };

static struct {
  char role[kRole], call[kRole], path[PATH_MAX];
  int nth, error, stall_ms, is_short, lasting;
} fault;
static enum Base base;
static bool has_fault;
static atomic_bool begun;
static atomic_int seen;
static const char *log_file, *struck_file, *where, *ours;

__attribute__((constructor)) static void set_up(void) {
  log_file = getenv("CAMPAIGN_LOG");
  struck_file = getenv("CAMPAIGN_STRUCK");
  where = getenv("CAMPAIGN_WHERE");
  ours = getenv("CAMPAIGN_OURS");
  if (!log_file || !where || !ours) return;
  const char* told = getenv("CAMPAIGN_FAULT");
  has_fault = told && sscanf(told, "%23s %23s %d %d %d %d %d %4095s", fault.role, fault.call,
                             &fault.nth, &fault.error, &fault.stall_ms, &fault.is_short,
                             &fault.lasting, fault.path) == 8;
  char line[kLine];
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY, 0);
  const long size = syscall(SYS_read, fd, line, sizeof line - 1);
  syscall(SYS_close, fd);
  line[size > 0 ? size : 0] = 0;
  bool module = false;
  for (const char* word = line; word < line + size; word += strlen(word) + 1) {
    const char* name = strrchr(word, '/');
    if (module && strcmp(word, "hangwatch") == 0) base = kSupervisor;
    if (module && strcmp(word, "hangwatch.watchdog") == 0) base = kWatchdog;
    if (name && strcmp(name, "/ranks.py") == 0) base = kRanks;
    if (base != kOther) return;
    module = strcmp(word, "-m") == 0;
  }
}

static const char* role(char* buffer) {
  if (base == kSupervisor) return "supervisor";
  if (base == kWatchdog) return "watchdog";
  const char* rank = getenv("RANK");
  if (!rank) return "launcher";
  snprintf(buffer, kRole, "rank%.8s", rank);
  return buffer;
}

// The path of an open file or directory, or nothing.
static void path_of(int fd, char* path) {
  char link[64];
  if (fd == AT_FDCWD)
    snprintf(link, sizeof link, "/proc/self/cwd");
  else
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const long size = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
  path[size > 0 ? size : 0] = 0;
}

static void absolute(int directory, const char* path, char* whole) {
  *whole = 0;
  if (path && *path == '/') {
    snprintf(whole, kPath, "%s", path);
  } else if (path) {
    path_of(directory, whole);
    const size_t size = strlen(whole);
    snprintf(whole + size, kPath - size, "/%s", path);
  }
}

static bool below(const char* path, const char* directory, size_t size) {
  return size && strncmp(path, directory, size) == 0 && (path[size] == '/' || !path[size]);
}

static bool is_ours(const char* path) {
  for (const char* each = ours; *each;) {
    const size_t size = strcspn(each, ":");
    if (below(path, each, size)) return true;
    each += size + (each[size] == ':');
  }
  return false;
}

// Whether what has this length is a name by chance: of a temporary file, or a hash.
static bool is_chance(const char* name, size_t size) {
  size_t hex = 0;
  while (hex < size && strchr("0123456789abcdef", name[hex])) hex++;
  return size >= 8 && hex == size;
}

// A path as it is alike in each run.
static void shown(const char* path, char* out) {
  const size_t prefix = strlen(where);
  char* const end = out + kPath - 8;
  bool temporary = false;
  if (below(path, where, prefix)) {
    *out++ = '~';
    path += prefix;
    temporary = strncmp(path, "/tmp/", 5) == 0;
    if (temporary) {
      out += sprintf(out, "/tmp");
      path += 4;
    }
  }
  while (*path && out < end) {
    const size_t size = strcspn(path, "/");
    const size_t stem = strcspn(path, "./");
    const char* dash = memrchr(path, '-', size);
    size_t kept = size;
    if (*path == '.' && dash) kept = (size_t)(dash - path) + 1;  // .NAME-CHANCE
    if (is_chance(path, stem) || (temporary && size == 8)) kept = 0;
    for (size_t at = 0; at < kept && out < end; at++) {
      const char c = path[at];
      if (!isdigit((unsigned char)c))
        *out++ = isspace((unsigned char)c) ? '_' : c;
      else if (at == 0 || !isdigit((unsigned char)path[at - 1]))
        *out++ = '#';
    }
    if (kept < size) *out++ = '*';
    path += size;
    if (*path == '/') *out++ = *path++;
  }
  *out = 0;
}

static void note(const char* line) {
  const int fd =
      (int)syscall(SYS_openat, AT_FDCWD, log_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return;
  syscall(SYS_write, fd, line, strlen(line));
  syscall(SYS_close, fd);
}

static void stall(void) {
  struct timespec left = {fault.stall_ms / 1000, fault.stall_ms % 1000 * 1000000L};
  while (syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &left, &left) != 0) continue;
}

// Whether the fault is for this call; then it has been noted.
static bool struck(const char* who, const char* call, const char* path) {
  if (!has_fault || strcmp(who, fault.role) != 0 || strcmp(call, fault.call) != 0) return false;
  if (strcmp(fault.path, "*") != 0 && strcmp(path, fault.path) != 0) return false;
  const int number = atomic_fetch_add(&seen, 1) + 1;
  if (fault.lasting ? number < fault.nth : number != fault.nth) return false;
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (fault.lasting ? 0 : O_EXCL);
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, struck_file, flags, 0600);
  if (fd < 0) return false;
  syscall(SYS_close, fd);
  return true;
}

enum Act { kGoOn, kFail, kShorten };

// To be called before each call. what: "w" where something may be changed. kFail: errno is set.
static enum Act meet(const char* call, const char* what, int directory, const char* path) {
  const int before = errno;
  if (!log_file || base == kOther) return kGoOn;
  char whole[kPath], alike[kPath], line[kLine], buffer[kRole];
  if (path)
    absolute(directory, path, whole);
  else if (directory >= 0)
    path_of(directory, whole);
  else
    *whole = 0;
  const bool own = is_ours(whole);
  const char* who = role(buffer);
  enum Act act = kGoOn;
  if (own && (base != kSupervisor || below(whole, where, strlen(where)))) begun = true;
  shown(*whole ? whole : "-", alike);
  const bool counts = base == kRanks ? own : begun;
  if (counts || *what == 'w') {
    const bool now = counts && struck(who, call, alike);
    snprintf(line, sizeof line, "%s %s %s %s%s\n", call, who, counts ? what : "x", alike,
             now ? " STRUCK" : "");
    note(line);
    if (now) {
      if (fault.stall_ms) stall();
      act = fault.error ? kFail : fault.is_short ? kShorten : kGoOn;
    }
  }
  errno = act == kFail ? fault.error : before;
  return act;
}

#define MEET(...) \
  if (meet(__VA_ARGS__) == kFail) return -1

static const char* changes(int flags) {
  return flags & (O_CREAT | O_TRUNC) || (flags & O_ACCMODE) != O_RDONLY ? "w" : "r";
}

static int open_it(int directory, const char* path, int flags, mode_t mode) {
  MEET("open", changes(flags), directory, path);
  return (int)syscall(SYS_openat, directory, path, flags, mode);
}

#define WITH_MODE(flags, mode)             \
  mode_t mode = 0;                         \
  if ((flags) & (O_CREAT | __O_TMPFILE)) { \
    va_list rest;                          \
    va_start(rest, flags);                 \
    mode = va_arg(rest, mode_t);           \
    va_end(rest);                          \
  }

int open(const char* path, int flags, ...) {
  WITH_MODE(flags, mode)
  return open_it(AT_FDCWD, path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  WITH_MODE(flags, mode)
  return open_it(AT_FDCWD, path, flags, mode);
}

int openat(int directory, const char* path, int flags, ...) {
  WITH_MODE(flags, mode)
  return open_it(directory, path, flags, mode);
}

int openat64(int directory, const char* path, int flags, ...) {
  WITH_MODE(flags, mode)
  return open_it(directory, path, flags, mode);
}

int __open_2(const char* path, int flags) { return open_it(AT_FDCWD, path, flags, 0); }

int __open64_2(const char* path, int flags) { return open_it(AT_FDCWD, path, flags, 0); }

int creat(const char* path, mode_t mode) {
  return open_it(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int creat64(const char* path, mode_t mode) { return creat(path, mode); }

static FILE* open_stream(const char* name, const char* path, const char* mode) {
  FILE* (*next)(const char*, const char*) =
      (FILE * (*)(const char*, const char*)) dlsym(RTLD_NEXT, name);
  const char* what = strpbrk(mode, "wa+") ? "w" : "r";
  return meet("open", what, AT_FDCWD, path) == kFail ? NULL : next(path, mode);
}

FILE* fopen(const char* path, const char* mode) { return open_stream("fopen", path, mode); }

FILE* fopen64(const char* path, const char* mode) { return open_stream("fopen64", path, mode); }

void* mmap(void* at, size_t size, int access, int flags, int fd, off_t offset) {
  // Memory without a file is the interpreter's and the allocator's business.
  if (!(flags & MAP_ANONYMOUS) && meet("mmap", "r", fd, NULL) == kFail) return MAP_FAILED;
  return (void*)syscall(SYS_mmap, at, size, access, flags, fd, offset);
}

void* mmap64(void* at, size_t size, int access, int flags, int fd, off64_t offset) {
  return mmap(at, size, access, flags, fd, offset);
}

int flock(int fd, int kind) {
  MEET("flock", "r", fd, NULL);
  return (int)syscall(SYS_flock, fd, kind);
}

int ftruncate(int fd, off_t size) {
  MEET("allocate", "r", fd, NULL);
  return (int)syscall(SYS_ftruncate, fd, size);
}

int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

int posix_fallocate(int fd, off_t offset, off_t size) {
  if (meet("allocate", "r", fd, NULL) == kFail) return errno;  // it returns it
  return syscall(SYS_fallocate, fd, 0, offset, size) == 0 ? 0 : errno;
}

int posix_fallocate64(int fd, off64_t offset, off64_t size) {
  return posix_fallocate(fd, offset, size);
}

int renameat2(int from, const char* old, int to, const char* new, unsigned flags) {
  MEET("rename", "w", from, old);
  char whole[kPath], alike[kPath], line[kLine];
  if (log_file && base != kOther) {
    absolute(to, new, whole);
    shown(whole, alike);
    char buffer[kRole];
    snprintf(line, sizeof line, "renamed %s w %s\n", role(buffer), alike);
    note(line);
  }
  return (int)syscall(SYS_renameat2, from, old, to, new, flags);
}

int renameat(int from, const char* old, int to, const char* new) {
  return renameat2(from, old, to, new, 0);
}

int rename(const char* old, const char* new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }

int mkdirat(int directory, const char* path, mode_t mode) {
  MEET("mkdir", "w", directory, path);
  return (int)syscall(SYS_mkdirat, directory, path, mode);
}

int mkdir(const char* path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int unlinkat(int directory, const char* path, int flags) {
  MEET("unlink", "w", directory, path);
  return (int)syscall(SYS_unlinkat, directory, path, flags);
}

int unlink(const char* path) { return unlinkat(AT_FDCWD, path, 0); }

int rmdir(const char* path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int symlinkat(const char* target, int directory, const char* path) {
  MEET("rename", "w", directory, path);
  return (int)syscall(SYS_symlinkat, target, directory, path);
}

int symlink(const char* target, const char* path) { return symlinkat(target, AT_FDCWD, path); }

ssize_t write(int fd, const void* bytes, size_t size) {
  switch (meet("write", "r", fd, NULL)) {
    case kFail:
      return -1;
    case kShorten:
      size = size > 1 ? size / 2 : size;
      break;
    case kGoOn:
      break;
  }
  return syscall(SYS_write, fd, bytes, size);
}

int connect(int fd, const struct sockaddr* address, socklen_t size) {
  if (base != kRanks) MEET("connect", "r", -1, NULL);
  return (int)syscall(SYS_connect, fd, address, size);
}

static bool may_fork(void) { return base == kRanks || meet("fork", "r", -1, NULL) != kFail; }

pid_t fork(void) {
  pid_t (*next)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "fork");
  return may_fork() ? next() : -1;
}

// Which returns twice on one stack, and so cannot be passed on; fork() does all that it does.
pid_t vfork(void) { return fork(); }

typedef int Spawn(pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*,
                  char* const[], char* const[]);

int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* how, char* const words[], char* const environ_[]) {
  Spawn* next = (Spawn*)dlsym(RTLD_NEXT, "posix_spawn");
  return may_fork() ? next(pid, path, actions, how, words, environ_) : errno;
}

int posix_spawnp(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                 const posix_spawnattr_t* how, char* const words[], char* const environ_[]) {
  Spawn* next = (Spawn*)dlsym(RTLD_NEXT, "posix_spawnp");
  return may_fork() ? next(pid, path, actions, how, words, environ_) : errno;
}
