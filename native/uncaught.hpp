// Keeps the C++ exception that ends this process.
//
// An exception that a thread of C++ does not catch ends the process by std::terminate: gloo's
// loop does for a message that is larger than expected, PyTorch's watchdog of NCCL for a time-out.
// From outside that is a SIGABRT which says nothing. The handler writes type and text into the
// page, and calls the handler that was there before. For an exception of gloo's or NCCL's it has
// the Flight Recorder written first.
//
// Nothing here knows Python or throws.

#pragma once

namespace hangwatch::uncaught {

// Install the handler, once for each process.
void follow() noexcept;

}  // namespace hangwatch::uncaught
