#include "moments.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "dump.hpp"
#include "mapping.hpp"
#include "writer.hpp"

namespace hangwatch::moments {
namespace {

constexpr std::uint64_t kPeriodNs = 100'000'000;
constexpr std::uint64_t kSteadyNs = 1'000'000'000;
constexpr std::uint64_t kLookEveryNs = 5'000'000'000;
constexpr std::uint64_t kBesideNs = 120'000'000'000;
constexpr std::int64_t kUnknownCount = std::numeric_limits<std::int64_t>::min();
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

// --- The thread that issues calls ---------------------------------------------------

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

// The system call that the thread sleeps in; kRunning where it has or wants a CPU, kUnknownCall
// where the system does not say.
std::int64_t sleeps_in(std::uint32_t thread) {
  char text[128];
  read_file(thread, "syscall", text);
  if (text[0] == '\0') return kUnknownCall;
  return std::strncmp(text, "running", 7) == 0 ? kRunning : std::atoll(text);
}

// Calls that c10d has counted beside those that Python has issued: the most so far, and when there
// were some more at last. The heart's alone.
std::int64_t g_most_beside = kUnknownCount;
std::uint64_t g_beside_ns = 0;

// Notes if C++ issues calls, as DDP's reducer does. A call of Python's is counted somewhat later
// than it is recorded: a few more are none of C++.
void look_beside(const Page& page, const MomentData& moment) {
  constexpr std::int64_t kMore = 8;
  std::int64_t issued = 0;
  for (std::uint64_t i = 0; i < moment.count; ++i) {
    issued += static_cast<std::int64_t>(moment.groups[i].issued);
  }
  const std::int64_t recorded = static_cast<std::int64_t>(page.next_event.load(kRelaxed));
  const bool is_first = g_most_beside == kUnknownCount;
  if (moment.count == 0 || (!is_first && issued - recorded < g_most_beside + kMore)) return;
  if (!is_first) g_beside_ns = moment.ns;
  g_most_beside = issued - recorded;
}

// Finds the thread that trains, and the newest call that it is blocked in. It is the one that
// issues calls, the main one if it does; also if C++ issues calls, since then another thread that
// issues some may be one that logs. Older calls than kEvents are not looked at.
void find_calls(const Page& page, MomentData& moment) {
  constexpr std::uint64_t kEvents = 32;
  const auto main = static_cast<std::uint32_t>(getpid());
  std::uint32_t newest = 0;
  bool main_issues = g_beside_ns != 0 && moment.ns - g_beside_ns < kBesideNs;
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

// --- The calls of each group --------------------------------------------------------

// A group of gloo's, by the number that it has in c10d's recorder.
struct Counted {
  std::string id;
  std::string name;  // empty while it is not known
  int looks;         // for the name
  std::int64_t slot;
};
constexpr std::size_t kMaxCounted = 256;
constexpr int kMostLooks = 4;

// The heart's alone, which beats to the end.
std::vector<Counted>* g_counted = nullptr;
std::uint64_t g_looked_ns = 0;  // at all entries, which takes some ms
std::uint64_t g_groups = 0;     // those of the page, as a number that changes with them
std::uint64_t g_steady_ns = 0;  // since when they are these, and no one else is to come

bool is_gloo_alone(std::string_view backends) {
  while (!backends.empty()) {
    const std::size_t comma = std::min(backends.find(','), backends.size());
    const std::string_view one = backends.substr(0, comma);
    if (one.substr(one.find(':') + 1) != "gloo") return false;  // find() + 1 is 0 without one
    backends.remove_prefix(std::min(comma + 1, backends.size()));
  }
  return true;
}

// Finds the slots of the groups that are known by name. True if the recorder may be asked: its
// table of groups, which it reads without its lock, gets none for now. A group joins it at its
// first call: all have made theirs, some time ago, and no other backend makes calls that could
// pass for that.
bool find_slots(const Page& page, std::uint64_t now_ns) {
  bool all_known = page.groups_left_out.load(kRelaxed) == 0;
  std::uint64_t groups = 0;
  for (Counted& one : *g_counted) one.slot = -1;
  const std::uint64_t slots = std::min<std::uint64_t>(page.slots.load(kRelaxed), kMaxGroups);
  for (std::size_t slot = 0; slot < slots; ++slot) {
    GroupData data;
    if (!writer::has_room(slot) || !page.groups[slot].data.read(data)) return false;
    if (data.defined != 1 || data.ended_ns != 0) continue;
    groups = mixed(groups ^ (slot << 32 | data.generation));
    if (page.groups[slot].enqueued.load(kRelaxed) == 0) all_known = false;
    if (!is_gloo_alone(data.backend.str())) all_known = false;
    const std::string name = data.name.str();
    for (Counted& one : *g_counted) {
      if (one.name == name) one.slot = static_cast<std::int64_t>(slot);
    }
  }
  if (groups == 0) all_known = false;
  if (!all_known || g_steady_ns == 0 || groups != g_groups) g_steady_ns = all_known ? now_ns : 0;
  g_groups = groups;
  return all_known && now_ns - g_steady_ns >= kSteadyNs;
}

Counted* counted(std::string_view id) {
  for (Counted& one : *g_counted) {
    if (one.id == id) return &one;
  }
  if (g_counted->size() == kMaxCounted) return nullptr;
  g_counted->push_back({std::string(id), {}, 0, -1});
  return &g_counted->back();
}

// The text between two others, from a position that it moves on; empty where there is none.
std::string_view between(std::string_view text, std::size_t& at, std::string_view begin,
                         std::string_view end) {
  const std::size_t first = text.find(begin, at);
  if (first == std::string_view::npos) return {};
  const std::size_t from = first + begin.size();
  const std::size_t to = text.find(end, from);
  if (to == std::string_view::npos) return {};
  at = to + end.size();
  return text.substr(from, to - from);
}

// The number of a member of an object, in quotes or not; negative where there is none.
std::int64_t number_of(std::string_view object, std::string_view key) {
  std::size_t at = object.find(key);
  if (at == std::string_view::npos) return -1;
  at = object.find_first_of("-0123456789", at + key.size());
  return at == std::string_view::npos ? -1 : std::atoll(object.data() + at);
}

void find_names() {
  const std::string dumped = dump::ask_gloo(true);
  for (Counted& one : *g_counted) {
    if (!one.name.empty()) continue;
    ++one.looks;
    std::size_t at = 0;
    one.name = between(dumped, at, "\"pg_id\":" + one.id + ",\"process_group\":[\"", "\"");
  }
}

// Adds what the recorder counts. True if the name of a group is to be looked for.
bool add_groups(std::string_view dumped, MomentData& moment) {
  constexpr std::string_view kStatus = "\"pg_status\":{";
  bool is_unnamed = false;
  std::size_t at = dumped.find(kStatus);
  if (at == std::string_view::npos) return false;
  at += kStatus.size();
  while (at < dumped.size() && dumped[at] != '}' && moment.count < kMomentGroups) {
    const std::string_view id = between(dumped, at, "\"", "\":{");
    const std::size_t end = dumped.find('}', at);
    if (id.empty() || end == std::string_view::npos) break;
    const std::string_view status = dumped.substr(at, end - at);
    at = end + 1;
    const Counted* const known = counted(id);
    if (known == nullptr) continue;
    is_unnamed = is_unnamed || (known->name.empty() && known->looks < kMostLooks);
    const std::int64_t issued = number_of(status, "last_enqueued_collective\":");
    if (known->slot < 0 || issued < 0) continue;
    const std::int64_t completed = number_of(status, "last_completed_collective\":");
    moment.groups[moment.count++] = {
        static_cast<std::uint64_t>(known->slot), static_cast<std::uint64_t>(issued),
        static_cast<std::uint64_t>(std::max<std::int64_t>(completed, 0))};
  }
  return is_unnamed;
}

}  // namespace

void count_calls(MomentData& moment) noexcept try {
  const Page* const page = writer::page();
  if (g_counted == nullptr) g_counted = new std::vector<Counted>;
  if (page == nullptr || !find_slots(*page, moment.ns)) return;
  if (add_groups(dump::ask_gloo(false), moment) &&
      (g_looked_ns == 0 || moment.ns - g_looked_ns > kLookEveryNs)) {
    g_looked_ns = moment.ns;
    find_names();
  }
} catch (...) {  // c10d's, or no memory
}

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
  count_calls(moment);
  look_beside(*page, moment);
  char text[128];
  char* rest = nullptr;
  moment.cpu_ns = std::strtoull(read_file(moment.thread, "schedstat", text), &rest, 10);
  moment.delay_ns = std::strtoull(rest, nullptr, 10);
  page->moments[number % kMoments].write(moment);
}

}  // namespace hangwatch::moments
