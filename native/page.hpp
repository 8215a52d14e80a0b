// The rank page: the only definition of its layout.
//
// A fixed-size file that one process writes and any process reads, also after
// the writer was killed. Nothing here knows Python. All of it is plain words in
// native byte order, since writer and readers live on one machine.
//
// Tear-proof without locks: whatever is more than one word is a Record, a
// sequence lock with one version at each end. The writer makes `end` odd, writes
// the words, then sets `begin` and `end` to the next even number. A reader that
// goes from `begin` to `end` and finds the same even number at both has seen no
// write in between; this also holds for a copy of the file that was made in
// ascending order.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace hangwatch {

constexpr std::uint64_t kMagic = 0x31'45'47'41'50'57'48'89;  // "\x89HWPAGE1"
constexpr std::uint32_t kVersion = 12;
constexpr std::size_t kMaxGroups = 512;
// Slots get memory so many at a time: most ranks never need more than the first.
constexpr std::size_t kSlotsAtOnce = 64;
static_assert(kMaxGroups % kSlotsAtOnce == 0);
constexpr std::size_t kRingEvents = 256;
constexpr std::size_t kNewGroups = 32;
constexpr std::size_t kMarks = 16;
constexpr std::size_t kCheckpoints = 8;
constexpr std::uint64_t kCheckpointInterval = 32;
constexpr std::size_t kBeacons = 32;     // for consecutive sequence numbers of a group
constexpr std::size_t kSplitsKept = 32;  // calls with splits, by their index modulo this
constexpr std::size_t kMaxSplits = 128;  // of larger groups they are not kept
constexpr std::size_t kMoments = 64;
constexpr std::size_t kMomentGroups = 24;  // of more the other ones are not counted
constexpr std::size_t kMaxSites = 4096;
constexpr std::size_t kMaxStrings = 4096;
constexpr std::size_t kStringBytes = 192 * 1024;
constexpr std::size_t kMaxDims = 8;
constexpr std::uint32_t kNone = 0xffff'ffff;  // no string, no site

// Most members that a reader expands for one group, and for one page: what a
// page claims is not to be trusted with memory.
constexpr std::size_t kMaxMembers = 1 << 17;
constexpr std::size_t kMaxMembersOfPage = 1 << 20;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

// In the order of types.Phase and types.OpState.
enum class Phase : std::uint32_t { born, init, running, finalizing, exited, raised };
constexpr std::uint32_t kPhases = 6;
enum class OpState : std::uint32_t { issued, blocked, done, failed };
constexpr std::uint32_t kOpStates = 4;

template <class T>
class Record {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(std::uint64_t) == 0);
  static constexpr std::size_t kWords = sizeof(T) / sizeof(std::uint64_t);
  static constexpr int kSpins = 256;

 public:
  // False where another thread is writing this record and does not finish: the
  // caller drops its write rather than wait.
  bool lock(std::uint64_t& version) noexcept {
    for (int spin = 0; spin < kSpins; ++spin) {
      version = end_.load(std::memory_order_relaxed);
      if ((version & 1) == 0 &&
          end_.compare_exchange_weak(version, version + 1, std::memory_order_acquire,
                                     std::memory_order_relaxed)) {
        std::atomic_thread_fence(std::memory_order_release);
        return true;
      }
    }
    return false;
  }

  void unlock(std::uint64_t version) noexcept {
    begin_.store(version + 2, std::memory_order_release);
    end_.store(version + 2, std::memory_order_release);
  }

  // One word of T, by its offset; for the holder of the lock.
  std::uint64_t word(std::size_t offset) const noexcept {
    return words_[offset / sizeof(std::uint64_t)].load(std::memory_order_relaxed);
  }
  void set_word(std::size_t offset, std::uint64_t value) noexcept {
    words_[offset / sizeof(std::uint64_t)].store(value, std::memory_order_relaxed);
  }

  void fill(const T& value) noexcept {
    std::uint64_t words[kWords];
    std::memcpy(words, &value, sizeof(T));
    for (std::size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_relaxed);
  }

  bool write(const T& value) noexcept {
    std::uint64_t version = 0;
    if (!lock(version)) return false;
    fill(value);
    unlock(version);
    return true;
  }

  // False where no whole value could be had; `value` then holds what was seen.
  bool read(T& value) const noexcept {
    std::uint64_t words[kWords];
    bool whole = false;
    for (int spin = 0; spin < kSpins && !whole; ++spin) {
      const std::uint64_t begin = begin_.load(std::memory_order_acquire);
      for (std::size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      whole = begin == end_.load(std::memory_order_relaxed) && (begin & 1) == 0;
    }
    std::memcpy(&value, words, sizeof(T));
    return whole;
  }

 private:
  std::atomic<std::uint64_t> begin_;
  std::atomic<std::uint64_t> words_[kWords];
  std::atomic<std::uint64_t> end_;
};

// Text in a record: UTF-8, ended by a zero where it is shorter than its room.
template <std::size_t N>
struct Text {
  char bytes[N];

  void set(std::string_view text) noexcept {
    const std::size_t n = text.size() < N ? text.size() : N;
    std::memcpy(bytes, text.data(), n);
    std::memset(bytes + n, 0, N - n);
  }
  std::string str() const { return std::string(bytes, ::strnlen(bytes, N)); }
};

struct IdentityData {
  std::uint64_t start_ticks;
  std::uint64_t created_ns;
  std::int32_t pid;
  std::int32_t rank;
  std::int32_t world_size;
  std::int32_t local_rank;
  std::int32_t local_world_size;
  std::int32_t restart;
  std::int32_t store_port;
  std::int32_t reserved;
  Text<128> host;
  Text<256> store_host;
  Text<160> run_id;
  Text<512> program;
};

struct PhaseData {
  std::uint64_t ns;
  std::uint64_t phase;
};

struct InCallData {
  std::uint64_t ns;
  std::uint64_t line;
  Text<64> name;
  Text<512> file;
  Text<128> function;
};

// A call of new_group: the ranks meet below the group's name, which counts these calls.
struct NewGroupData {
  std::uint64_t index;  // among the calls of this process
  std::uint64_t ns;
  std::int64_t number;  // the name, -1 where it is no number
  std::uint64_t site;
  Text<512> members;  // see encode_members; empty where they do not fit
};

// Something that the rank does at a line and that is no call of a group; agent/record/marks.py.
struct MarkData {
  std::uint64_t ns;  // of the last time
  std::uint64_t count;
  std::uint64_t site;
  Text<16> kind;
  Text<200> text;
};

struct ExceptionData {
  std::uint64_t ns;
  std::uint64_t line;
  std::uint64_t in_cpp;  // std::terminate was called for it; native/uncaught.hpp
  Text<128> type;
  Text<1024> message;  // what it says, and what led to it (hangwatch/model/json_page.py)
  Text<512> file;
  Text<128> function;
};

struct NoteData {
  Text<256> text;
};

struct GroupData {
  std::uint64_t made_ns;
  std::uint64_t ended_ns;  // when it was destroyed, 0 before
  std::uint32_t defined;
  std::uint32_t generation;  // grows each time that the slot is defined
  std::uint32_t index;
  std::uint32_t member_count;
  std::uint32_t truncated;  // `members` holds only the first of them
  std::uint32_t reserved;
  Text<128> name;
  Text<192> desc;
  Text<64> backend;
  Text<1536> members;  // see encode_members
};

// A hash of all that Python issued in a group up to a sequence number that is a multiple of
// kCheckpointInterval: equal on ranks that run the same program.
struct Checkpoint {
  std::atomic<std::uint64_t> seq;  // 0 while it is written
  std::atomic<std::uint64_t> hash;
};

// What each call writes lies together: a cold cache line costs as much as the rest.
struct alignas(64) GroupSlot {
  std::atomic<std::uint64_t> enqueued;
  std::atomic<std::int64_t> completed;
  std::atomic<std::uint64_t> entered;
  std::atomic<std::uint64_t> left;
  std::atomic<std::uint64_t> p2p;
  std::atomic<std::uint64_t> changed_ns;
  std::atomic<std::uint64_t> generation;  // as in `data`
  Checkpoint checkpoints[kCheckpoints];
  Record<GroupData> data;
};

struct EventData {
  std::uint64_t index;
  std::uint64_t issued_ns;
  std::uint64_t blocked_ns;
  std::uint64_t done_ns;
  std::uint32_t state;
  std::uint32_t is_async;
  std::uint64_t seq;
  std::uint32_t generation;  // of the slot when the call was issued
  std::uint32_t slot;
  std::uint32_t op;     // string
  std::uint32_t wire;   // string
  std::uint32_t dtype;  // string
  std::uint32_t site;
  std::int32_t root;
  std::int32_t peer;
  std::int64_t tag;
  std::int32_t device;  // whose stream was given a beacon (see BeaconSlot), -1 for none
  std::uint32_t reserved;
  std::uint32_t thread;
  std::uint16_t ndim;
  std::uint16_t p2p;
  std::int64_t shape[kMaxDims];
};

struct alignas(64) EventSlot {
  Record<EventData> record;
};

// How many rows a call of all_to_all_single sends to each member of its group, and takes.
struct SplitsData {
  std::uint64_t index;  // of its event
  std::uint32_t sends;  // how many are known, 0 where they were not given
  std::uint32_t receives;
  std::int32_t sent[kMaxSplits];
  std::int32_t received[kMaxSplits];
};

// How far a stream has come: what the GPU writes, and what it was asked to write
// (beacon.hpp). A sequence number has the beacon of its value modulo kBeacons, since
// streams overtake each other: one word for all would go back and forth between them.
// Where the host is further ahead than that, a beacon stands for several numbers.
struct Beacon {
  std::atomic<std::uint64_t> asked;  // the last sequence number, 0 for none
  std::atomic<std::uint64_t> first;  // the first one since the GPU last had them all
  std::atomic<std::uint64_t> seen;   // by the GPU
};

enum class BeaconKind : std::uint8_t { reached, passed };
constexpr std::size_t kBeaconKinds = 2;

struct BeaconSlot {
  Beacon of[kBeaconKinds][kBeacons];
};

// Why there are none, before anything has asked for them, or had need of one.
constexpr const char* kBeaconsNotAllowed = "this torch has no CUDA";
constexpr const char* kNoBeaconsYet =
    "no collective on a CUDA device was issued from Python so far";

// How far the rank has come at a moment; native/moments.hpp.
constexpr std::int64_t kRunning = -2;
constexpr std::int64_t kUnknownCall = -3;
struct MomentData {
  std::uint64_t number;
  std::uint64_t ns;
  std::int64_t call;           // the system call that the thread sleeps in, see moments.cpp
  std::uint64_t cpu_ns;        // that the thread has had
  std::uint64_t delay_ns;      // for which it has waited for a CPU
  std::uint32_t blocked_slot;  // of the call that it is blocked in, kNone for none
  std::int32_t blocked_peer;   // -1 but for a send or recv
  std::uint32_t thread;        // that issues calls
  std::uint32_t count;
  struct {
    std::uint64_t slot;
    std::uint64_t issued;     // calls, as c10d counts them
    std::uint64_t completed;  // the last of them
  } groups[kMomentGroups];
};

// Append-only tables: an entry never changes once the count covers it.
struct StringTable {
  std::atomic<std::uint64_t> count;
  std::atomic<std::uint64_t> used_bytes;
  std::atomic<std::uint64_t> refs[kMaxStrings];  // offset << 32 | length
  char bytes[kStringBytes];
};

struct SiteTable {
  std::atomic<std::uint64_t> count;
  std::atomic<std::uint64_t> names[kMaxSites];  // file << 32 | function
  std::atomic<std::uint64_t> lines[kMaxSites];
};

struct Page {
  std::atomic<std::uint64_t> magic;  // written last: before, it is no page
  std::atomic<std::uint64_t> version;
  std::atomic<std::uint64_t> bytes;
  std::atomic<std::uint64_t> heartbeat_ns;
  std::atomic<std::uint64_t> gil_ns;
  std::atomic<std::uint64_t> pending_since_ns;
  std::atomic<std::uint64_t> swallowed;
  std::atomic<std::uint64_t> dropped;  // writes that found no room or a busy record
  std::atomic<std::uint64_t> next_event;
  std::atomic<std::uint64_t> next_new_group;
  std::atomic<std::uint64_t> slots;            // how many have memory: look at no others
  std::atomic<std::uint64_t> groups_left_out;  // groups of the rank that found no slot
  std::atomic<std::uint32_t> requests;  // a futex: grows when the watchdog asks for something
  std::uint32_t reserved;
  Record<IdentityData> identity;
  Record<PhaseData> phase;
  Record<InCallData> in_call;
  Record<ExceptionData> exception;
  Record<NoteData> handling;
  Record<NoteData> disarmed;
  Record<NoteData> beacons_off;  // why there are no beacons; empty if there are
  Record<NoteData> torch_lacks;  // what the agent misses in this torch; empty if nothing
  Record<NewGroupData> new_groups[kNewGroups];
  Record<MarkData> marks[kMarks];
  Record<MomentData> moments[kMoments];
  EventSlot events[kRingEvents];
  Record<SplitsData> splits[kSplitsKept];
  SiteTable sites;
  StringTable strings;
  // The slots, for which room is set aside as they come into use (Page::slots). To
  // read another one would be to make room for it, and SIGBUS where there is none.
  GroupSlot groups[kMaxGroups];
  BeaconSlot beacons[kMaxGroups];  // last: the driver pins the memory from here to the end
};

static_assert(std::is_standard_layout_v<Page>);
constexpr std::size_t kPageBytes = (sizeof(Page) + 4095) / 4096 * 4096;

// Members as text that stays short for the regular groups of real jobs:
// "0-3,8,12-60/4" is 0 1 2 3 8 12 16 ... 60. Order is kept. Returns how many
// members fitted into `room` bytes.
std::size_t encode_members(const std::vector<std::int64_t>& ranks, std::size_t room,
                           std::string& text);

// False for text that encode_members does not write, or for more than `limit`
// members; `ranks` then holds those before it.
bool decode_members(std::string_view text, std::size_t limit, std::vector<std::int64_t>& ranks);

}  // namespace hangwatch
