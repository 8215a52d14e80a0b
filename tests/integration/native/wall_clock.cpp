// The wall clock of every process that preloads this is an hour ahead; all others are as they were.

#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

namespace {

constexpr time_t kAheadS = 3600;

int Read(clockid_t clock, timespec* now) {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    now->tv_sec += kAheadS;
  }
  return result;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept { return Read(clock, now); }

int gettimeofday(timeval* now, void* /*zone*/) noexcept {
  timespec exact{};
  const int result = Read(CLOCK_REALTIME, &exact);
  *now = {exact.tv_sec, exact.tv_nsec / 1000};
  return result;
}

time_t time(time_t* now) noexcept {
  timespec exact{};
  Read(CLOCK_REALTIME, &exact);
  if (now != nullptr) {
    *now = exact.tv_sec;
  }
  return exact.tv_sec;
}

}  // extern "C"
