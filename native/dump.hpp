// c10d's Flight Recorder for the watchdog while no thread of Python's gets the GIL.
//
// The sampler answers a request (<page>.req, see agent/flight.py) as soon as it can run.
// One that still lies there at the next beat is answered from here, by a thread that is
// made for it: c10d's own functions for a dump as JSON need no GIL. Whoever removes the
// request answers it.
//
// They are called by their mangled names. B5cxx11 in these says that std::string is the
// one which this is built with: wheels of torch before 2.7 have another one, other names
// therefore, and are not asked. torch's WorkerServer (a thread that answers over HTTP)
// would do the same, but prints two warnings on each rank and has nine threads or more.
//
// Nothing here knows Python or throws.

#pragma once

namespace hangwatch::dump {

// Requests for this page are answered from now on.
void open(const char* page) noexcept;
void close() noexcept;
// In a fork's child.
void disown() noexcept;

// To be called at every beat of the heart.
void look() noexcept;

}  // namespace hangwatch::dump
