// Recording wrappers that replace methods of torch's classes.

#pragma once

#include "python.hpp"

namespace hangwatch::wrap {

// Returns a list of the names that were wrapped, or nullptr with an exception set.
PyObject* wrap_methods(PyObject* process_group, PyObject* work, PyObject* resolve);

// Puts the originals back. Returns false with an exception set.
bool unwrap_methods();

}  // namespace hangwatch::wrap
