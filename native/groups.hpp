// Process groups of this process: their slots in the page, and their sequence numbers.
//
// Everything here runs with the GIL held.

#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "page.hpp"
#include "python.hpp"

namespace hangwatch::groups {

enum class Call : std::uint8_t {
  collective,
  monitored_barrier,
  p2p,
};

// What a call works on; looked up only where it matters.
enum class Device : std::uint8_t { unknown, cpu, other };

struct Slot {
  bool defined;
  // What c10d's number means here: see number_kind() in groups.cpp.
  enum class Number : std::uint8_t { own, trial, measured, gloo, nccl, mixed } number;
  bool shares_number;  // the calls of a coalescing have one number together
  bool coalescing;
  std::int64_t adjust;  // c10d's number less the sequence number
  std::uint64_t own;    // the last sequence number as far as this recorder alone knows
  std::uint64_t p2p;
  std::uint32_t in_flight;   // calls of Python that are inside c10d
  std::uint32_t unsettled;   // those of them after which `adjust` changes
  std::uint32_t generation;  // grows with every call
  std::uint64_t last_seq;
  std::uint64_t coalesced_seq;
  std::uint32_t definition;     // no two groups of the process have the same
  PyObject* address = nullptr;  // of the group, once it was resolved; no reference
  std::int32_t device = -1;     // the CUDA device of its last call with a tensor on one
  std::vector<std::int64_t> ranks;
};

// A call between begin() and end().
struct NumberedCall {
  std::uint64_t seq;     // 0: an exception that is not ours is set, and it is not to be made
  std::uint64_t before;  // c10d's number, where it was read
  bool was_read;
  bool unsettled;
  Call call;
  Device device;
  std::uint32_t definition;  // of the slot; another group may have it by the end
};

bool setup(PyObject* process_group_type);  // false with an exception set
void teardown();
void reset();  // for a new page

Slot* at(std::int64_t slot);
// True if the slot still is that of the same group, be it retired.
bool is_still(std::size_t slot, std::uint32_t definition);
void define(std::size_t slot, const std::vector<std::int64_t>& ranks, std::string_view backend);
void retire(std::size_t slot);

// Slot of a group, -1 where it is not to be recorded. Asks `resolve` once for each group,
// and again where that says kAskAgain. Returns kRaised with an exception set: resolve keeps
// its own errors to itself, so it is one that a signal handler has raised, or another thread.
constexpr std::int64_t kAskAgain = -2;
constexpr std::int64_t kRaised = -3;
std::int64_t slot_of(PyObject* group, PyObject* resolve);

// As slot_of, but -1 for a group not seen before; runs no Python code.
std::int64_t known_slot_of(PyObject* group);

// Global rank of a rank of the group.
std::int32_t global_rank(const Slot& slot, std::int64_t rank);

// Numbers a call that is about to be made, and counts it in the page.
NumberedCall begin(std::size_t index, PyObject* group, Call call, Device device, std::uint64_t now);
// The call is not made.
void cancel(std::size_t index, const NumberedCall& numbered);
// The call has returned or raised (with its exception still set). False where an exception
// that is not ours is set, perhaps instead of the call's own.
bool end(std::size_t index, PyObject* group, const NumberedCall& numbered, bool failed);

// Takes c10d's number into the page. Returns the last sequence number that Python or C++
// has taken, or -1 where it cannot be told now. May leave an exception that is not ours.
std::int64_t sample(std::size_t index, PyObject* group, std::int64_t completed);

void begin_coalescing(std::size_t index, PyObject* group);
void end_coalescing(std::size_t index);

}  // namespace hangwatch::groups
