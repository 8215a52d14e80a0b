// Python's limited API (one abi3 wheel for 3.11 and later), and the little that
// we need beyond it.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>

// Exported by every CPython since 3.9, and part of the stable ABI since 3.12
// with these signatures; the headers of the limited API of 3.11 do not show them.
extern "C" PyAPI_FUNC(PyObject*) PyObject_Vectorcall(PyObject* callable, PyObject* const* args,
                                                     std::size_t nargsf, PyObject* kwnames);

extern "C" PyAPI_FUNC(PyObject*) PyObject_VectorcallMethod(PyObject* name, PyObject* const* args,
                                                           std::size_t nargsf, PyObject* kwnames);

namespace hangwatch {

// PY_VECTORCALL_ARGUMENTS_OFFSET of PEP 590: the callee may use args[-1].
constexpr std::size_t kArgumentsOffset = std::size_t{1} << (8 * sizeof(std::size_t) - 1);

// A strong reference.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* stolen) : object_(stolen) {}
  Ref(Ref&& other) noexcept : object_(other.object_) { other.object_ = nullptr; }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  Ref& operator=(Ref&& other) noexcept {
    PyObject* before = object_;
    object_ = other.object_;
    other.object_ = nullptr;
    Py_XDECREF(before);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  explicit operator bool() const { return object_ != nullptr; }
  PyObject* get() const { return object_; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }

 private:
  PyObject* object_ = nullptr;
};

}  // namespace hangwatch
