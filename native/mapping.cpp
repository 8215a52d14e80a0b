#include "mapping.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

#include "beacon.hpp"
#include "dump.hpp"

namespace hangwatch::writer {
namespace {

std::atomic<Page*> g_page{nullptr};
thread_local std::uint32_t t_thread = 0;

// In a fork's child the mapping is still there, but it is the parent's.
void disown_after_fork() {
  g_page.store(nullptr, std::memory_order_relaxed);
  t_thread = 0;
  disown_tables();
  disown_heartbeat();
  beacon::disown();
  dump::disown();
}

int create_file(const char* path, int& fd) noexcept {
  fd = ::open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return errno;
  // Without room set aside, a full file system answers the first write to a
  // page of memory with SIGBUS.
  int error = 0;
  do {
    error = posix_fallocate(fd, 0, static_cast<off_t>(kPageBytes));
  } while (error == EINTR);
  if (error == 0) return 0;
  ::close(fd);
  unlink(path);
  return error;
}

IdentityData to_data(const Identity& identity, std::uint64_t created_ns) {
  IdentityData data{};
  data.start_ticks = identity.start_ticks;
  data.created_ns = created_ns;
  data.pid = identity.pid;
  data.rank = identity.rank;
  data.world_size = identity.world_size;
  data.local_rank = identity.local_rank;
  data.local_world_size = identity.local_world_size;
  data.restart = identity.restart;
  data.store_port = identity.store_port;
  data.host.set(identity.host);
  data.store_host.set(identity.store_host);
  data.run_id.set(identity.run_id);
  data.script.set(identity.script);
  return data;
}

}  // namespace

Page* page() noexcept { return g_page.load(std::memory_order_acquire); }

void dropped(Page* page) noexcept { page->dropped.fetch_add(1, std::memory_order_relaxed); }

std::uint32_t this_thread() noexcept {
  if (t_thread == 0) t_thread = static_cast<std::uint32_t>(syscall(SYS_gettid));
  return t_thread;
}

std::uint64_t now_ns() noexcept {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

std::uint64_t coarse_now_ns() noexcept {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

int open(const char* path, const Identity& identity) noexcept {
  if (page() != nullptr) return EALREADY;
  static const int at_fork = pthread_atfork(nullptr, nullptr, disown_after_fork);
  if (at_fork != 0) return at_fork;
  int fd = -1;
  if (const int error = create_file(path, fd)) return error;
  void* memory = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  int error = memory == MAP_FAILED ? errno : 0;
  ::close(fd);
  if (error == 0 && !open_tables()) {
    munmap(memory, kPageBytes);
    error = ENOMEM;
  }
  if (error != 0) {
    unlink(path);
    return error;
  }
  auto* p = static_cast<Page*>(memory);
  const std::uint64_t now = now_ns();
  p->version.store(kVersion, std::memory_order_relaxed);
  p->bytes.store(kPageBytes, std::memory_order_relaxed);
  p->identity.write(to_data(identity, now));
  p->phase.write(PhaseData{now, static_cast<std::uint64_t>(Phase::born)});
  NoteData no_beacons{};
  no_beacons.text.set(kBeaconsNotAllowed);
  p->beacons_off.write(no_beacons);
  for (GroupSlot& slot : p->groups) slot.completed.store(-1, std::memory_order_relaxed);
  p->magic.store(kMagic, std::memory_order_release);
  g_page.store(p, std::memory_order_release);
  dump::open(path);
  return 0;
}

void close() noexcept {
  stop_heartbeat();
  Page* p = g_page.exchange(nullptr);
  if (p == nullptr) return;
  dump::close();
  beacon::close();
  munmap(p, kPageBytes);
  close_tables();
}

bool is_open() noexcept { return page() != nullptr; }

}  // namespace hangwatch::writer
