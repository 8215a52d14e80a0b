// Values from Python's arguments. What returns false has set an exception.

#pragma once

#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "python.hpp"
#include "writer.hpp"

namespace hangwatch {

inline PyObject* none() {
  Py_INCREF(Py_None);
  return Py_None;
}

// C++ exceptions end here: none may cross into C.
template <class Body>
PyObject* guarded(Body body) noexcept try {
  return body();
} catch (const std::bad_alloc&) {
  return PyErr_NoMemory();
} catch (const std::exception& error) {
  PyErr_SetString(PyExc_RuntimeError, error.what());
  return nullptr;
}

// Texts as Python has them may hold lone surrogates; a page takes what it can.
struct TextArgument {
  Ref bytes;
  std::string_view view;

  bool set(PyObject* text);
};

bool phase_named(const char* name, Phase& phase);
bool slot_in_range(Py_ssize_t slot);
bool integers(PyObject* sequence, std::vector<std::int64_t>& values);
bool texts(PyObject* sequence, std::vector<std::string>& values);
bool identity_from(PyObject* dict, writer::Identity& identity);

}  // namespace hangwatch
