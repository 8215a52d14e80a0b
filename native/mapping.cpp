#include "mapping.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "beacon.hpp"
#include "dump.hpp"
#include "uncaught.hpp"

namespace hangwatch::writer {
namespace {

constexpr int kAllocateTries = 100;

std::atomic<Page*> g_page{nullptr};

// The file, to be opened again where it needs more memory. A descriptor that stayed open
// might be closed by the program, which closes all that it does not know, and be another
// file's by then. Not freed in a fork's child.
struct File {
  std::string path;
  dev_t device;
  ino_t inode;
};
const File* g_file = nullptr;
bool g_follows_forks = false;
std::atomic<std::uint64_t> g_slots{0};  // as in the page

thread_local std::uint32_t t_thread = 0;

// In a fork's child the mapping is still there, but it is the parent's.
void disown_after_fork() {
  g_page.store(nullptr, std::memory_order_relaxed);
  g_file = nullptr;
  g_slots.store(0, std::memory_order_relaxed);
  t_thread = 0;
  disown_tables();
  disown_heartbeat();
  beacon::disown();
  dump::disown();
}

// Without room set aside, a full file system answers the first write to a page of
// memory with SIGBUS. A signal makes fallocate(2) begin anew, and a timer of the program's
// may fire more often than that takes: its signals wait meanwhile. Returns an errno.
int allocate(int fd, std::size_t begin, std::size_t end) noexcept {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  const bool masked = pthread_sigmask(SIG_SETMASK, &all, &before) == 0;
  int error = EINTR;
  for (int tries = 0; tries < kAllocateTries && error == EINTR; ++tries) {
    error = posix_fallocate(fd, static_cast<off_t>(begin), static_cast<off_t>(end - begin));
  }
  if (masked) pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

// Both parts of the file that the slots lie in, from one slot to another.
int allocate_slots(int fd, std::size_t first, std::size_t last) noexcept {
  const std::size_t groups = offsetof(Page, groups);
  const std::size_t beacons = offsetof(Page, beacons);
  const int error =
      allocate(fd, groups + first * sizeof(GroupSlot), groups + last * sizeof(GroupSlot));
  if (error != 0) return error;
  return allocate(fd, beacons + first * sizeof(BeaconSlot), beacons + last * sizeof(BeaconSlot));
}

int create_file(const char* path, int& fd) noexcept {
  fd = ::open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return errno;
  int error = allocate(fd, 0, offsetof(Page, groups));
  if (error == 0) error = allocate_slots(fd, 0, kSlotsAtOnce);
  if (error == 0 && ftruncate(fd, static_cast<off_t>(kPageBytes)) != 0) error = errno;
  if (error == 0) return 0;
  ::close(fd);
  unlink(path);
  return error;
}

const File* remember(const char* path, int fd) noexcept try {
  struct stat status;
  if (fstat(fd, &status) != 0) return nullptr;
  return new File{path, status.st_dev, status.st_ino};
} catch (const std::bad_alloc&) {
  return nullptr;
}

// For slots that come into use later. Returns an errno.
int allocate_more(std::size_t first, std::size_t last) noexcept {
  if (g_file == nullptr) return ENOENT;
  const int fd = ::open(g_file->path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return errno;
  struct stat status;
  int error = fstat(fd, &status) != 0 ? errno : 0;
  if (error == 0 && (status.st_dev != g_file->device || status.st_ino != g_file->inode)) {
    error = ESTALE;  // another file has its name now
  }
  if (error == 0) error = allocate_slots(fd, first, last);
  ::close(fd);
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
  data.program.set(identity.program);
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
  if (!g_follows_forks) {  // no static, whose guard a fork amid it would leave locked
    if (const int error = pthread_atfork(nullptr, nullptr, disown_after_fork)) return error;
    g_follows_forks = true;
  }
  int fd = -1;
  if (const int error = create_file(path, fd)) return error;
  void* memory = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  int error = memory == MAP_FAILED ? errno : 0;
  const File* file = remember(path, fd);
  ::close(fd);
  if (error == 0 && (file == nullptr || !open_tables())) {
    munmap(memory, kPageBytes);
    error = ENOMEM;
  }
  if (error != 0) {
    delete file;
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
  p->slots.store(kSlotsAtOnce, std::memory_order_relaxed);
  g_slots.store(kSlotsAtOnce, std::memory_order_relaxed);
  g_file = file;
  p->magic.store(kMagic, std::memory_order_release);
  g_page.store(p, std::memory_order_release);
  dump::open(path);
  uncaught::follow();
  return 0;
}

bool has_room(std::size_t slot) noexcept { return slot < g_slots.load(std::memory_order_relaxed); }

bool make_room(Page* p, std::size_t slot) noexcept {
  const std::uint64_t slots = g_slots.load(std::memory_order_relaxed);
  if (slot < slots) return true;
  const std::size_t wanted = (slot / kSlotsAtOnce + 1) * kSlotsAtOnce;
  if (wanted > kMaxGroups || allocate_more(slots, wanted) != 0) return false;
  g_slots.store(wanted, std::memory_order_relaxed);
  p->slots.store(wanted, std::memory_order_release);
  return true;
}

void close() noexcept {
  stop_heartbeat();
  Page* p = g_page.exchange(nullptr);
  if (p == nullptr) return;
  dump::close();
  beacon::close();
  munmap(p, kPageBytes);
  close_tables();
  g_slots.store(0, std::memory_order_relaxed);
  delete g_file;
  g_file = nullptr;
}

bool is_open() noexcept { return page() != nullptr; }

}  // namespace hangwatch::writer
