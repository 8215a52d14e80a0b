// Python's garbage collector, held while the sampler works.

#pragma once

#include "python.hpp"

namespace hangwatch::collector {

// Puts functions of ours in the place of gc's enable(), disable() and isenabled(), once. They do
// what those do, and know what the program asked for while the collector is held. Sets an error
// and returns false where that fails.
bool watch();

// Holds the collector. All with the GIL, and none makes an object.
void hold() noexcept;

// Leaves it as the program wants it. A fork's child calls it, too.
void release() noexcept;

}  // namespace hangwatch::collector
