#include "moments.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "dump.hpp"
#include "mapping.hpp"
#include "writer.hpp"

namespace hangwatch::moments {
namespace {

constexpr std::uint64_t kPeriodNs = 100'000'000;
constexpr auto kRelaxed = std::memory_order_relaxed;

// splitmix64, https://prng.di.unimi.it/splitmix64.c
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e37'79b9'7f4a'7c15;
  value = (value ^ (value >> 30)) * 0xbf58'476d'1ce4'e5b9;
  value = (value ^ (value >> 27)) * 0x94d0'49bb'1331'11eb;
  return value ^ (value >> 31);
}

std::uint64_t time_of(std::uint64_t number) {
  return number * kPeriodNs + mixed(number) % kPeriodNs;
}

// A file of /proc about a thread of this process, as text; empty where it cannot be read.
template <std::size_t N>
const char* read_file(std::uint32_t thread, const char* name, char (&text)[N]) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/self/task/%u/%s", thread, name);
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t length = fd < 0 ? 0 : ::read(fd, text, N - 1);
  if (fd >= 0) ::close(fd);
  text[length > 0 ? length : 0] = '\0';
  return text;
}

// The system call that the thread sleeps in; kRunning where it has or wants a CPU, kUnknown
// where the system does not say.
std::int64_t sleeps_in(std::uint32_t thread) {
  char text[128];
  read_file(thread, "syscall", text);
  if (text[0] == '\0') return kUnknownCall;
  return std::strncmp(text, "running", 7) == 0 ? kRunning : std::atoll(text);
}

// Finds the thread that issues calls, the main one if it does, and the newest call that it is
// blocked in. Older calls than kEvents are not looked at.
void find_calls(const Page& page, MomentData& moment) {
  constexpr std::uint64_t kEvents = 32;
  const auto main = static_cast<std::uint32_t>(getpid());
  std::uint32_t newest = 0;
  bool main_issues = false;
  moment.blocked_slot = kNone;
  moment.blocked_peer = -1;
  std::uint32_t blocked = 0;  // the thread
  const std::uint64_t next = page.next_event.load(std::memory_order_acquire);
  for (std::uint64_t back = 1; back <= kEvents && back <= next; ++back) {
    const Record<EventData>& record = page.events[(next - back) % kRingEvents].record;
    EventData event;
    if (!record.read(event) || event.index != next - back) continue;
    if (newest == 0) newest = event.thread;
    main_issues = main_issues || event.thread == main;
    if (static_cast<OpState>(event.state) != OpState::blocked) continue;
    if (blocked != 0 && (blocked == main || event.thread != main)) continue;
    blocked = event.thread;
    moment.blocked_slot = event.slot;
    moment.blocked_peer = event.p2p != 0 ? event.peer : -1;
  }
  moment.thread = main_issues || newest == 0 ? main : newest;
  if (blocked != moment.thread) moment.blocked_slot = kNone;
}

}  // namespace

Next next(std::uint64_t now_ns) noexcept {
  std::uint64_t number = now_ns / kPeriodNs;
  if (time_of(number) <= now_ns) ++number;
  return {number, time_of(number)};
}

void take(std::uint64_t number) noexcept {
  Page* page = writer::page();
  if (page == nullptr) return;
  MomentData moment{};
  moment.number = number;
  moment.ns = writer::now_ns();
  find_calls(*page, moment);
  moment.call = sleeps_in(moment.thread);
  dump::count_issued(moment);
  char text[128];
  char* rest = nullptr;
  moment.cpu_ns = std::strtoull(read_file(moment.thread, "schedstat", text), &rest, 10);
  moment.delay_ns = std::strtoull(rest, nullptr, 10);
  page->moments[number % kMoments].write(moment);
}

}  // namespace hangwatch::moments
