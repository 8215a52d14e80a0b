// Records calls as events: before the original runs, and after it.
//
// Everything runs with the GIL held, but any call of Python's may let another thread or
// a signal handler run, which may come back here. Nothing here throws: what fails is
// swallowed and counted, and after a few failures recording stops. Exceptions that are not
// ours (foreign.hpp) are left set: the program is to see them at once.

#pragma once

#include "groups.hpp"
#include "python.hpp"
#include "signature.hpp"

namespace hangwatch::record {

bool setup();
void reset();  // for a new page
void disarm();
// True if this process has a page and records.
bool armed() noexcept;

// The first failures are forgiven; after this many, recording stops.
constexpr int kMaxFailures = 5;
// Swallows the exception that is set, if any. False, and it stays, if it is not ours.
bool swallow() noexcept;

// An exception that is not ours is set: the call is not to be made.
constexpr std::int64_t kInterrupted = -2;

struct Call {
  std::uint64_t event;
  std::int64_t slot;   // -1: not recorded, or kInterrupted
  const void* caller;  // callsite::caller() at its beginning
  groups::NumberedCall numbered;
  bool completes;       // a wait that returns means that it is complete
  std::int32_t device;  // whose stream has a beacon before it, -1 for none
};

Call begin(std::size_t method, PyObject* group, const signature::Arguments& arguments,
           PyObject* resolve) noexcept;
// `result` is what the original returned, nullptr with its exception set if it raised.
// False where an exception that is not ours is set, which the program is to see instead.
bool end(const Call& call, PyObject* group, PyObject* result) noexcept;

// Coalescing: the Work at its end stands for all calls since its start.
// Both are false as end() is.
bool coalescing_began(PyObject* group, PyObject* resolve) noexcept;
bool coalescing_ended(PyObject* group, PyObject* result) noexcept;

// Events that a Work stands for, from wait_begin to wait_end.
struct Wait {
  std::uint64_t first;
  std::uint64_t last;
  std::int64_t slot;          // -1: nothing is known of this Work
  std::uint64_t collectives;  // of the events, those that are no sends and recvs
  const void* caller;         // if the same function waits, the call is a synchronous one
  bool completes;
  bool is_async;
  std::uint32_t definition;  // of the slot: another group may have it by the end
  std::uint64_t seq;         // of the last call
  std::int32_t device;       // as in Call
};

Wait wait_begin(PyObject* work) noexcept;
// `completes`: the method that was called returns when the Work is complete. False as end() is.
bool wait_end(const Wait& wait, bool completes, bool failed) noexcept;

// A call that Python code records by itself; the event needs its call site,
// times and state from here. Returns the index, or -1.
std::int64_t add(EventData& event) noexcept;
void finish(std::int64_t index, bool failed) noexcept;

}  // namespace hangwatch::record
