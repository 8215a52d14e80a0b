// Beacons on the stream that is current in torch.

#pragma once

#include <cstdint>

#include "page.hpp"
#include "python.hpp"

namespace hangwatch::streams {

// current_stream: torch._C._cuda_getCurrentRawStream, which takes a device's number and
// returns the handle of the stream that is current in the calling thread.
void use(PyObject* current_stream);

// True if beacons can be written at all, so that it matters which device a call is on.
bool wanted() noexcept;

// Enqueues a beacon on the current stream of the device. Lets go of the GIL meanwhile.
// False where none was; never leaves an exception. To be called without one set.
bool mark(BeaconKind kind, std::int64_t slot, std::uint64_t seq, std::int32_t device) noexcept;

}  // namespace hangwatch::streams
