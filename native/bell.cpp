// Wakes the sampler of a rank at once: a futex in its page (futex(2)).

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

#include "mapping.hpp"

namespace hangwatch::writer {
namespace {

constexpr std::size_t kHeadBytes = 4096;  // what another process maps of a page
static_assert(offsetof(Page, requests) + sizeof(std::uint32_t) <= kHeadBytes);

// Not a private futex: the watchdog wakes it through a mapping of its own.
long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout,
                 nullptr, 0);
}

void ring(Page& page) {
  page.requests.fetch_add(1, std::memory_order_acq_rel);
  futex(page.requests, FUTEX_WAKE, INT_MAX, nullptr);
}

timespec to_timespec(double seconds) {
  if (!(seconds > 0)) return {0, 0};
  if (seconds > 3600) seconds = 3600;
  const auto whole = static_cast<time_t>(seconds);
  return {whole, static_cast<long>((seconds - static_cast<double>(whole)) * 1e9)};
}

}  // namespace

std::uint32_t wait_for_request(std::uint32_t seen, double seconds) noexcept {
  const timespec timeout = to_timespec(seconds);
  Page* p = page();
  if (p == nullptr) {
    nanosleep(&timeout, nullptr);
    return seen;
  }
  futex(p->requests, FUTEX_WAIT, seen, &timeout);
  p = page();
  return p == nullptr ? seen : p->requests.load(std::memory_order_acquire);
}

void ring() noexcept {
  if (Page* p = page()) ring(*p);
}

int ring_at(const char* path) noexcept {
  const int fd = ::open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return errno;
  struct stat status;
  int error = fstat(fd, &status) != 0 ? errno : 0;
  if (error == 0 && (!S_ISREG(status.st_mode) || status.st_size != static_cast<off_t>(kPageBytes)))
    error = EINVAL;
  void* memory = MAP_FAILED;
  if (error == 0) {
    memory = mmap(nullptr, kHeadBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) error = errno;
  }
  ::close(fd);
  if (error != 0) return error;
  auto* head = static_cast<Page*>(memory);
  if (head->magic.load(std::memory_order_acquire) == kMagic &&
      head->version.load(std::memory_order_relaxed) == kVersion) {
    ring(*head);
  } else {
    error = EINVAL;
  }
  munmap(memory, kHeadBytes);
  return error;
}

}  // namespace hangwatch::writer
