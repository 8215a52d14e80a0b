// c10d's Flight Recorder for the watchdog, without the GIL.
//
// A request (<page>.req, see agent/sample/flight.py) is answered by a thread that is made for it:
// c10d's own functions for a dump as JSON need no GIL. The sampler has it made as soon as it
// can run, since a dump may have to wait for the driver, and nobody is to hold the GIL
// meanwhile; the heart does for a request that still lies there at its next beat. Whoever
// removes the request answers it.
//
// They are called by their mangled names, which say the types of their arguments. B5cxx11 and
// __cxx11 in these say that std::string is the one which this is built with: wheels of torch
// before 2.7 have another one, other names therefore, and are not asked. Where not all that
// torch has is found, the sampler answers: a part would pass for the whole. torch's WorkerServer (a
// thread that answers over HTTP) would do the same, but prints two warnings on each rank and has
// nine threads or more.
//
// Nothing here knows Python or throws.

#pragma once

#include "page.hpp"

namespace hangwatch::dump {

// Requests for this page are answered from now on.
void open(const char* page) noexcept;
void close() noexcept;
// In a fork's child.
void disown() noexcept;

// Look for the recorders that this torch has: NCCL's, and the general one. False where one of
// them cannot be asked. Of the general ones, of which torch 2.15 has one for each backend, gloo's
// is asked, and those that are added.
bool use(bool nccl, bool general) noexcept;

// Ask for this backend's recorder too, as long as the process lives. With the GIL.
void add(const char* backend) noexcept;

// Has a request answered. False where that is the sampler's.
bool answer() noexcept;

// Write the recorder of a process that ends, without a request, and have the other ranks of its
// directory asked for theirs: their launcher ends them as soon as this one is gone. Waits no
// longer than so many ms.
void leave(unsigned ms) noexcept;

// To be called at every beat of the heart.
void look() noexcept;

// What gloo's recorder says, with its entries or not; empty where it cannot be asked. It reads its
// table of groups without its lock: not to be called while one may join it. Throws as c10d does.
std::string ask_gloo(bool entries);

}  // namespace hangwatch::dump
