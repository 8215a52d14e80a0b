// Exceptions that are not ours: what a signal handler of the program raises, or another
// thread sends, may come up in any statement of ours. They are meant for the program.

#pragma once

#include "python.hpp"

namespace hangwatch::foreign {

// Tells whether an Exception was meant for the program, by its traceback
// (hangwatch.safety.foreign.is_foreign); nullptr: none is.
void set_judge(PyObject* judge);

// True if the exception that is set is such a one. It stays set.
bool is_set() noexcept;

// Puts an exception back that was put aside (PyErr_Fetch). Where one that is not ours has
// come meanwhile, that one stays, and the other becomes its context. Steals the references.
void restore_unless_set(PyObject* type, PyObject* value, PyObject* traceback) noexcept;

}  // namespace hangwatch::foreign
