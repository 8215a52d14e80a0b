// Stream beacons: the GPU itself writes into the page how far its streams have come.
//
// A write of a collective's sequence number is enqueued on the stream of the caller
// (cuStreamWriteValue64), and the GPU does it when it comes there. The host reads
// memory, also when the process that enqueued it is stuck.
//
// reached: enqueued right before the collective is issued, on the stream that is
//   current then. It tells that all work has run which that stream had before the
//   collective, not that the collective runs: its own kernel is on a stream of NCCL's,
//   which may have others to run first, or is launched next on this one.
// passed: enqueued once the caller's stream waits for the collective: when Work.wait
//   has returned, or the call itself where it gives no Work (the backend then has
//   made the stream wait). It tells that the collective is complete. It is not there
//   for a Work that nobody waits for.
//
// Calls that c10d gets from C++ (DDP's reducer, functional collectives, compiled
// graphs) have no beacons, nor has a send or a recv, nor what is captured into a
// CUDA graph.
//
// Nothing here knows Python or throws. What fails turns the beacons off for the
// life of the page, with a reason in it.

#pragma once

#include <cstdint>
#include <string>

#include "cuda.hpp"
#include "page.hpp"

namespace hangwatch::beacon {

// From now on beacons may be written, as soon as the process has a CUDA context; the
// library is looked for then, and never loaded. For each page anew.
void allow(const char* library) noexcept;
bool allowed() noexcept;

// Turns the beacons off, with the reason that the page then tells.
void turn_off(const char* reason) noexcept;

// Enqueues a beacon on a stream of the device (as CUDA numbers it). False where none
// was. May block, as any launch does when a stream has too much to do: not to be
// called with the GIL.
bool write(BeaconKind kind, std::size_t slot, std::uint64_t seq, int device,
           cuda::Stream stream) noexcept;

// For the mapping: before the page is unmapped, and in a fork's child.
void close() noexcept;
void disown() noexcept;

// Why there would be no beacons on this machine, or an empty string. Loads the library.
// Makes no context. `devices` are those that could be used.
std::string examine(const char* library, int& devices);

}  // namespace hangwatch::beacon
