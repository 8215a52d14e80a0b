// Writes the page of this process. Nothing here knows Python.
//
// Everything may be called by several threads at once, and does nothing where
// this process has no page. A fork's child is not the rank: it has no page
// until it opens one of its own.

#pragma once

#include <string_view>
#include <vector>

#include "page.hpp"

namespace hangwatch::writer {

struct Identity {
  std::int32_t pid = 0;
  std::uint64_t start_ticks = 0;
  std::int32_t rank = -1;
  std::int32_t world_size = -1;
  std::int32_t local_rank = -1;
  std::int32_t local_world_size = -1;
  std::int32_t restart = 0;
  std::int32_t store_port = 0;
  std::string host, store_host, run_id, program;
};

std::uint64_t now_ns() noexcept;  // CLOCK_MONOTONIC

// Returns 0, or the errno of what failed; EALREADY if there is a page already.
int open(const char* path, const Identity& identity) noexcept;
// Forgets the page and unmaps it; for tests, which open many.
void close() noexcept;
bool is_open() noexcept;

// Returns 0 or an errno. Beats from a thread that takes no lock of Python's and no signal.
// `with_moments`: it notes moments, too (moments.hpp).
int start_heartbeat(std::uint64_t interval_ms, bool with_moments) noexcept;
void stop_heartbeat() noexcept;

void set_identity(std::int32_t rank, std::int32_t world_size, std::string_view store_host,
                  std::int32_t store_port) noexcept;
void set_phase(Phase phase) noexcept;
void set_in_call(std::string_view name, std::string_view file, std::uint64_t line,
                 std::string_view function) noexcept;
// A call of new_group begins; `number`: see NewGroupData.
void add_new_group(std::int64_t number, const std::vector<std::int64_t>& ranks,
                   std::string_view file, std::uint64_t line, std::string_view function) noexcept;
// index: of the mark; nothing is written from kMarks on.
void set_mark(std::size_t index, std::string_view kind, std::string_view text, std::uint64_t count,
              std::string_view file, std::uint64_t line, std::string_view function) noexcept;
// The C++ exception that ends the process; no type where there is none. One of Python's stays.
void set_uncaught(std::string_view type, std::string_view message) noexcept;
void set_exception(std::string_view type, std::string_view message, std::string_view file,
                   std::uint64_t line, std::string_view function) noexcept;
void set_disarmed(std::string_view reason) noexcept;
// What the agent misses in this torch; empty if nothing.
void set_torch_lacks(std::string_view what) noexcept;
// Why no beacons are written; empty if they are.
void set_beacons(std::string_view reason) noexcept;
std::uint64_t count_swallowed() noexcept;
void beat(std::string_view handling, bool pending, bool pending_changed) noexcept;

// Waits for at most so long until `requests` is no longer `seen`; returns it.
std::uint32_t wait_for_request(std::uint32_t seen, double seconds) noexcept;
// Ends the wait of this process, and of the process whose page is at the path;
// the latter returns an errno, EINVAL for what is no page of this version.
void ring() noexcept;
int ring_at(const char* path) noexcept;

// Index of the text in the table of strings, kNone where it is full.
std::uint32_t intern(std::string_view text) noexcept;
std::uint32_t intern_site(std::string_view file, std::uint64_t line,
                          std::string_view function) noexcept;

// False where there is no room for it, or no page.
bool define_group(std::size_t slot, std::string_view name, std::string_view desc,
                  const std::vector<std::int64_t>& ranks, std::uint32_t index,
                  std::string_view backend) noexcept;
// `groups`: those of this process that have found no slot.
void set_groups_left_out(std::uint64_t groups) noexcept;
void retire_group(std::size_t slot) noexcept;
// Both counters only grow, whatever order samples come in.
void raise_enqueued(std::size_t slot, std::uint64_t seq, std::uint64_t now) noexcept;
void raise_completed(std::size_t slot, std::int64_t seq) noexcept;
// Takes back sequence numbers that c10d never counted, if they are still the last ones.
void lower_enqueued(std::size_t slot, std::uint64_t from, std::uint64_t to) noexcept;
void count_entered(std::size_t slot) noexcept;
void count_left(std::size_t slot, std::uint64_t calls) noexcept;
void count_p2p(std::size_t slot, std::uint64_t now) noexcept;
// A call that was counted is not made.
void uncount_entered(std::size_t slot) noexcept;
void uncount_p2p(std::size_t slot) noexcept;

// Gives the event its index, generation and thread, and writes it. Returns the
// index, or kNoEvent.
constexpr std::uint64_t kNoEvent = ~std::uint64_t{0};
std::uint64_t add_event(EventData& event) noexcept;
// Takes a collective into the hash of its group (see Checkpoint), in the order of
// their issue. `sized`: its tensors have one size on all ranks.
void agree(const EventData& event, bool sized) noexcept;
// Moves an event of the slot to another state, now, unless the ring has gone on
// without it or it was done already.
void set_splits(const SplitsData& splits) noexcept;
void move_event(std::uint64_t index, std::size_t slot, OpState state, bool is_async) noexcept;

// The event's collective has a beacon on a stream of the device.
void set_event_device(std::uint64_t index, std::size_t slot, std::int32_t device) noexcept;

// The call that an event is of; `slot` is kNone where the ring has gone on without it, where it
// has ended, and where its slot is another group's.
struct Origin {
  std::uint32_t slot;
  bool p2p;
  bool is_async;
};
Origin origin_of(std::uint64_t index) noexcept;

}  // namespace hangwatch::writer
