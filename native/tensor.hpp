// Looks at a tensor without running code of the user's.

#pragma once

#include "groups.hpp"
#include "page.hpp"
#include "python.hpp"

namespace hangwatch::tensor {

bool setup();   // false with an exception set
void forget();  // what it knows of the page's strings; for a new page

// Fills dtype and shape of the event, and the device (only where `want_device`);
// event.device is the number of a CUDA device, and left alone for any other.
// A tensor that cannot be looked at in peace is left out. Returns false with an
// exception set.
bool read(PyObject* tensor, bool want_device, EventData& event, groups::Device& device);

}  // namespace hangwatch::tensor
