#include "writer.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <new>
#include <unordered_map>

namespace hangwatch::writer {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

std::atomic<Page*> g_page{nullptr};

// What is known of the tables of the page, so that a text stands there once.
// Leaked on purpose: threads may still write while the process exits.
struct Tables {
  std::unordered_map<std::string, std::uint32_t> strings;
  std::unordered_map<std::string, std::uint32_t> sites;
};
Tables* g_tables = nullptr;

// Guards g_tables and the definition of groups among the threads of this
// process; readers know nothing of it. Not a mutex, since a child that was
// forked while another thread held it must be able to start afresh.
std::atomic_flag g_tables_busy = ATOMIC_FLAG_INIT;

class TablesLock {
 public:
  TablesLock() noexcept {
    while (g_tables_busy.test_and_set(std::memory_order_acquire)) sched_yield();
  }
  ~TablesLock() { g_tables_busy.clear(std::memory_order_release); }
  TablesLock(const TablesLock&) = delete;
  TablesLock& operator=(const TablesLock&) = delete;
};

struct Heartbeat {
  pthread_mutex_t mutex;
  pthread_cond_t wake;
  pthread_t thread;
  std::uint64_t interval_ns;
  bool stop;
};
Heartbeat* g_heartbeat = nullptr;

std::uint32_t this_thread() noexcept {
  static thread_local std::uint32_t tid = 0;
  if (tid == 0) tid = static_cast<std::uint32_t>(syscall(SYS_gettid));
  return tid;
}

// In a fork's child the mapping is still there, but it is the parent's.
void disown_after_fork() {
  g_page.store(nullptr, kRelaxed);
  g_heartbeat = nullptr;
  g_tables = nullptr;
  g_tables_busy.clear(std::memory_order_relaxed);
}

Page* page() noexcept { return g_page.load(std::memory_order_acquire); }

// To the tick (1 to 10 ms): a fifth of the price, and good enough for how long
// something takes.
std::uint64_t coarse_now_ns() noexcept {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

// The word of an event that says how it stands.
std::uint64_t words_of(OpState state, bool is_async) noexcept {
  static_assert(offsetof(EventData, is_async) == offsetof(EventData, state) + 4);
  const std::uint32_t halves[2] = {static_cast<std::uint32_t>(state), is_async};
  std::uint64_t word = 0;
  std::memcpy(&word, halves, sizeof(word));
  return word;
}

// 32 bits of a record, by their offset.
template <class T>
std::uint32_t half_word(const Record<T>& record, std::size_t offset) noexcept {
  const std::uint64_t word = record.word(offset);
  std::uint32_t half = 0;
  std::memcpy(&half, reinterpret_cast<const char*>(&word) + offset % sizeof(word), sizeof(half));
  return half;
}

void dropped(Page* page) noexcept { page->dropped.fetch_add(1, kRelaxed); }

void* heartbeat_main(void* argument) {
  auto* beat = static_cast<Heartbeat*>(argument);
  pthread_mutex_lock(&beat->mutex);
  while (!beat->stop) {
    if (Page* p = page()) p->heartbeat_ns.store(now_ns(), kRelaxed);
    timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const std::uint64_t ns = static_cast<std::uint64_t>(until.tv_nsec) + beat->interval_ns;
    until.tv_sec += static_cast<time_t>(ns / 1'000'000'000);
    until.tv_nsec = static_cast<long>(ns % 1'000'000'000);
    pthread_cond_timedwait(&beat->wake, &beat->mutex, &until);
  }
  pthread_mutex_unlock(&beat->mutex);
  return nullptr;
}

int create_file(const char* path, int& fd) noexcept {
  fd = ::open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return errno;
  // Without room set aside, a full file system answers the first write to a
  // page of memory with SIGBUS.
  int error = posix_fallocate(fd, 0, static_cast<off_t>(kPageBytes));
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

std::uint64_t now_ns() noexcept {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

int open(const char* path, const Identity& identity) noexcept {
  if (page() != nullptr) return EALREADY;
  static const int at_fork = pthread_atfork(nullptr, nullptr, disown_after_fork);
  if (at_fork != 0) return at_fork;
  auto* tables = new (std::nothrow) Tables;
  if (tables == nullptr) return ENOMEM;
  int fd = -1;
  if (const int error = create_file(path, fd)) {
    delete tables;
    return error;
  }
  void* memory = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int error = memory == MAP_FAILED ? errno : 0;
  ::close(fd);
  if (error != 0) {
    unlink(path);
    delete tables;
    return error;
  }
  auto* p = static_cast<Page*>(memory);
  const std::uint64_t now = now_ns();
  p->version.store(kVersion, kRelaxed);
  p->bytes.store(kPageBytes, kRelaxed);
  p->identity.write(to_data(identity, now));
  p->phase.write(PhaseData{now, static_cast<std::uint64_t>(Phase::born)});
  for (GroupSlot& slot : p->groups) slot.completed.store(-1, kRelaxed);
  p->magic.store(kMagic, std::memory_order_release);
  g_tables = tables;
  g_page.store(p, std::memory_order_release);
  return 0;
}

void close() noexcept {
  stop_heartbeat();
  Page* p = g_page.exchange(nullptr);
  if (p == nullptr) return;
  munmap(p, kPageBytes);
  delete g_tables;
  g_tables = nullptr;
}

bool is_open() noexcept { return page() != nullptr; }

int start_heartbeat(std::uint64_t interval_ms) noexcept {
  if (g_heartbeat != nullptr || page() == nullptr) return 0;
  auto* beat = new (std::nothrow) Heartbeat{};
  if (beat == nullptr) return ENOMEM;
  beat->interval_ns = std::clamp<std::uint64_t>(interval_ms, 1, 60'000) * 1'000'000;
  pthread_mutex_init(&beat->mutex, nullptr);
  pthread_condattr_t clock;
  pthread_condattr_init(&clock);
  pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  pthread_cond_init(&beat->wake, &clock);
  pthread_condattr_destroy(&clock);
  // The thread inherits the mask: no signal of the job's may be handled by it.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&beat->thread, nullptr, heartbeat_main, beat);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    delete beat;
    return error;
  }
  g_heartbeat = beat;
  return 0;
}

void stop_heartbeat() noexcept {
  Heartbeat* beat = g_heartbeat;
  if (beat == nullptr) return;
  g_heartbeat = nullptr;
  pthread_mutex_lock(&beat->mutex);
  beat->stop = true;
  pthread_cond_signal(&beat->wake);
  pthread_mutex_unlock(&beat->mutex);
  pthread_join(beat->thread, nullptr);
  pthread_cond_destroy(&beat->wake);
  pthread_mutex_destroy(&beat->mutex);
  delete beat;
}

void set_identity(std::int32_t rank, std::int32_t world_size, std::string_view store_host,
                  std::int32_t store_port) noexcept {
  Page* p = page();
  std::uint64_t version = 0;
  if (p == nullptr) return;
  IdentityData data;
  if (!p->identity.read(data) || !p->identity.lock(version)) return dropped(p);
  data.rank = rank;
  data.world_size = world_size;
  data.store_host.set(store_host);
  data.store_port = store_port;
  p->identity.fill(data);
  p->identity.unlock(version);
}

void set_phase(Phase phase) noexcept {
  Page* p = page();
  if (p == nullptr) return;
  if (!p->phase.write(PhaseData{now_ns(), static_cast<std::uint64_t>(phase)})) dropped(p);
}

void set_in_call(std::string_view name, std::string_view file, std::uint64_t line,
                 std::string_view function) noexcept {
  Page* p = page();
  if (p == nullptr) return;
  InCallData data{};
  if (!name.empty()) {
    data.ns = now_ns();
    data.line = line;
    data.name.set(name);
    data.file.set(file);
    data.function.set(function);
  }
  if (!p->in_call.write(data)) dropped(p);
}

void set_exception(std::string_view type, std::string_view message, std::string_view file,
                   std::uint64_t line, std::string_view function) noexcept {
  Page* p = page();
  if (p == nullptr) return;
  ExceptionData data{};
  data.ns = now_ns();
  data.line = line;
  data.type.set(type);
  data.message.set(message);
  data.file.set(file);
  data.function.set(function);
  if (!p->exception.write(data)) dropped(p);
}

void set_disarmed(std::string_view reason) noexcept {
  Page* p = page();
  if (p == nullptr) return;
  NoteData data{};
  data.text.set(reason);
  if (!p->disarmed.write(data)) dropped(p);
}

std::uint64_t count_swallowed() noexcept {
  Page* p = page();
  return p == nullptr ? 0 : p->swallowed.fetch_add(1, kRelaxed) + 1;
}

void beat(std::string_view handling, bool pending, bool pending_changed) noexcept {
  Page* p = page();
  if (p == nullptr) return;
  const std::uint64_t now = now_ns();
  NoteData before;
  NoteData data{};
  data.text.set(handling);
  p->handling.read(before);
  if (std::memcmp(&before, &data, sizeof(data)) != 0 && !p->handling.write(data)) dropped(p);
  if (!pending) {
    p->pending_since_ns.store(0, kRelaxed);
  } else if (pending_changed || p->pending_since_ns.load(kRelaxed) == 0) {
    p->pending_since_ns.store(now, kRelaxed);
  }
  p->gil_ns.store(now, kRelaxed);
}

namespace {

// For the holder of the lock.
std::uint32_t intern_locked(Page* p, std::string_view text) {
  const auto known = g_tables->strings.find(std::string(text));
  if (known != g_tables->strings.end()) return known->second;
  StringTable& table = p->strings;
  const std::uint64_t index = table.count.load(kRelaxed);
  const std::uint64_t offset = table.used_bytes.load(kRelaxed);
  if (index >= kMaxStrings || text.size() > kStringBytes - offset) {
    dropped(p);
    return kNone;
  }
  std::memcpy(table.bytes + offset, text.data(), text.size());
  table.refs[index].store(offset << 32 | text.size(), kRelaxed);
  table.used_bytes.store(offset + text.size(), kRelaxed);
  table.count.store(index + 1, std::memory_order_release);
  g_tables->strings.emplace(text, static_cast<std::uint32_t>(index));
  return static_cast<std::uint32_t>(index);
}

}  // namespace

std::uint32_t intern(std::string_view text) noexcept try {
  const TablesLock lock;
  Page* p = page();
  return p == nullptr ? kNone : intern_locked(p, text);
} catch (const std::bad_alloc&) {
  return kNone;
}

std::uint32_t intern_site(std::string_view file, std::uint64_t line,
                          std::string_view function) noexcept try {
  const TablesLock lock;
  Page* p = page();
  if (p == nullptr) return kNone;
  std::string key(file);
  key.append(1, '\0').append(function).append(1, '\0').append(std::to_string(line));
  const auto known = g_tables->sites.find(key);
  if (known != g_tables->sites.end()) return known->second;
  const std::uint64_t index = p->sites.count.load(kRelaxed);
  const std::uint64_t names =
      static_cast<std::uint64_t>(intern_locked(p, file)) << 32 | intern_locked(p, function);
  if (index >= kMaxSites || names >> 32 == kNone) {
    dropped(p);
    return kNone;
  }
  p->sites.names[index].store(names, kRelaxed);
  p->sites.lines[index].store(line, kRelaxed);
  p->sites.count.store(index + 1, std::memory_order_release);
  g_tables->sites.emplace(std::move(key), static_cast<std::uint32_t>(index));
  return static_cast<std::uint32_t>(index);
} catch (const std::bad_alloc&) {
  return kNone;
}

void define_group(std::size_t slot, std::string_view name, std::string_view desc,
                  const std::vector<std::int64_t>& ranks, std::uint32_t index,
                  std::string_view backend) noexcept try {
  const TablesLock lock;
  Page* p = page();
  if (p == nullptr || slot >= kMaxGroups) return;
  GroupSlot& group = p->groups[slot];
  std::string members;  // before the record is locked: it may throw
  const bool whole = encode_members(ranks, sizeof(GroupData::members), members) == ranks.size();
  GroupData data;
  std::uint64_t version = 0;
  if (!group.data.read(data) || !group.data.lock(version)) return dropped(p);
  const std::uint32_t generation = data.generation + 1;
  data = GroupData{};
  data.defined = 1;
  data.alive = 1;
  data.generation = generation;
  data.index = index;
  data.member_count = static_cast<std::uint32_t>(ranks.size());
  data.name.set(name);
  data.desc.set(desc);
  data.backend.set(backend);
  data.truncated = whole ? 0 : 1;
  data.members.set(members);
  group.enqueued.store(0, kRelaxed);
  group.completed.store(-1, kRelaxed);
  group.entered.store(0, kRelaxed);
  group.left.store(0, kRelaxed);
  group.p2p.store(0, kRelaxed);
  group.changed_ns.store(now_ns(), kRelaxed);
  group.data.fill(data);
  group.data.unlock(version);
} catch (const std::bad_alloc&) {
  if (Page* p = page()) dropped(p);
}

void retire_group(std::size_t slot) noexcept {
  const TablesLock lock;
  Page* p = page();
  if (p == nullptr || slot >= kMaxGroups) return;
  GroupSlot& group = p->groups[slot];
  GroupData data;
  if (!group.data.read(data)) return dropped(p);
  data.alive = 0;
  if (!group.data.write(data)) dropped(p);
}

void raise_enqueued(std::size_t slot, std::uint64_t places, std::uint64_t now) noexcept {
  Page* p = page();
  if (p == nullptr || slot >= kMaxGroups) return;
  GroupSlot& group = p->groups[slot];
  std::uint64_t seen = group.enqueued.load(kRelaxed);
  while (seen < places) {
    if (group.enqueued.compare_exchange_weak(seen, places, kRelaxed)) {
      group.changed_ns.store(now, kRelaxed);
      return;
    }
  }
}

void raise_completed(std::size_t slot, std::int64_t places) noexcept {
  Page* p = page();
  if (p == nullptr || slot >= kMaxGroups) return;
  std::atomic<std::int64_t>& completed = p->groups[slot].completed;
  std::int64_t seen = completed.load(kRelaxed);
  while (seen < places && !completed.compare_exchange_weak(seen, places, kRelaxed)) {
  }
}

void lower_enqueued(std::size_t slot, std::uint64_t from, std::uint64_t to) noexcept {
  Page* p = page();
  if (p == nullptr || slot >= kMaxGroups || to > from) return;
  p->groups[slot].enqueued.compare_exchange_strong(from, to, kRelaxed);
}

void count_entered(std::size_t slot) noexcept {
  Page* p = page();
  if (p != nullptr && slot < kMaxGroups) p->groups[slot].entered.fetch_add(1, kRelaxed);
}

void count_left(std::size_t slot, std::uint64_t calls) noexcept {
  Page* p = page();
  if (p != nullptr && slot < kMaxGroups) p->groups[slot].left.fetch_add(calls, kRelaxed);
}

void count_p2p(std::size_t slot, std::uint64_t now) noexcept {
  Page* p = page();
  if (p == nullptr || slot >= kMaxGroups) return;
  p->groups[slot].p2p.fetch_add(1, kRelaxed);
  p->groups[slot].changed_ns.store(now, kRelaxed);
}

std::uint64_t add_event(EventData& event) noexcept {
  Page* p = page();
  if (p == nullptr || event.slot >= kMaxGroups) return kNoEvent;
  event.generation = half_word(p->groups[event.slot].data, offsetof(GroupData, generation));
  event.thread = this_thread();
  event.index = p->next_event.fetch_add(1, kRelaxed);
  if (p->events[event.index % kRingEvents].write(event)) return event.index;
  dropped(p);
  return kNoEvent;
}

void move_event(std::uint64_t index, std::size_t slot, OpState state, bool is_async) noexcept {
  Page* p = page();
  if (p == nullptr || index == kNoEvent) return;
  Record<EventData>& event = p->events[index % kRingEvents];
  std::uint64_t version = 0;
  if (!event.lock(version)) return dropped(p);
  if (event.word(offsetof(EventData, index)) == index &&
      half_word(event, offsetof(EventData, slot)) == slot &&
      half_word(event, offsetof(EventData, state)) < static_cast<std::uint32_t>(OpState::done)) {
    // The coarse clock may be a tick behind the time of issue.
    const std::uint64_t now = std::max(event.word(offsetof(EventData, issued_ns)), coarse_now_ns());
    event.set_word(offsetof(EventData, state), words_of(state, is_async));
    if (state == OpState::issued || state == OpState::blocked) {
      event.set_word(offsetof(EventData, blocked_ns), state == OpState::blocked ? now : 0);
    } else {
      event.set_word(offsetof(EventData, done_ns), now);
    }
  }
  event.unlock(version);
}

Origin origin_of(std::uint64_t index) noexcept {
  Page* p = page();
  EventData event;
  if (p == nullptr || !p->events[index % kRingEvents].read(event) || event.index != index) {
    return Origin{kNone, false, false};
  }
  return Origin{event.slot, event.p2p != 0, event.is_async != 0};
}

}  // namespace hangwatch::writer
