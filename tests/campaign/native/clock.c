// Simulates steps of the wall clock: whoever has loaded this (LD_PRELOAD) is shown a time that
// differs by as many nanoseconds as the file that CAMPAIGN_CLOCK names holds at that moment, an
// int64_t. Other clocks run on. What is to wait until a wall-clock time waits as it would have.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { kSecond = 1000000000 };

static const volatile int64_t* shift_ns;
static int (*next_gettime)(clockid_t, struct timespec*);

__attribute__((constructor)) static void set_up(void) {
  next_gettime = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const char* file = getenv("CAMPAIGN_CLOCK");
  if (!file) return;
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return;
  void* memory = (void*)syscall(SYS_mmap, NULL, sizeof *shift_ns, PROT_READ, MAP_SHARED, fd, 0);
  syscall(SYS_close, fd);
  if (memory != MAP_FAILED) shift_ns = memory;
}

static void shift(struct timespec* at, int64_t by_ns) {
  const int64_t whole = at->tv_sec * (int64_t)kSecond + at->tv_nsec + by_ns;
  at->tv_sec = whole / kSecond;
  at->tv_nsec = whole % kSecond;
}

static int64_t now_shift_ns(void) { return shift_ns ? *shift_ns : 0; }

int clock_gettime(clockid_t clock, struct timespec* at) {
  const int failed =
      next_gettime ? next_gettime(clock, at) : (int)syscall(SYS_clock_gettime, clock, at);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    shift(at, now_shift_ns());
  return failed;
}

int gettimeofday(struct timeval* at, void* zone) {
  struct timespec now;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* at) {
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const struct timespec* until) {
  static int (*next)(pthread_cond_t*, pthread_mutex_t*, const struct timespec*);
  if (!next) {
    next = (int (*)(pthread_cond_t*, pthread_mutex_t*, const struct timespec*))dlvsym(
        RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!next)  // on machines that came later there is one version only
      next = (int (*)(pthread_cond_t*, pthread_mutex_t*, const struct timespec*))dlsym(
          RTLD_NEXT, "pthread_cond_timedwait");
  }
  struct timespec at = *until;
  struct timespec steady;
  clock_gettime(CLOCK_MONOTONIC, &steady);
  // Which clock it is of is the condition's secret: only the wall clock's times are that large.
  if (at.tv_sec > steady.tv_sec + 500000000) shift(&at, -now_shift_ns());
  return next(condition, mutex, &at);
}

int sem_timedwait(sem_t* semaphore, const struct timespec* until) {
  int (*next)(sem_t*, const struct timespec*) =
      (int (*)(sem_t*, const struct timespec*))dlsym(RTLD_NEXT, "sem_timedwait");
  struct timespec at = *until;
  shift(&at, -now_shift_ns());
  return next(semaphore, &at);
}
