#include "wrap.hpp"

#include <cstring>
#include <utility>

#include "record.hpp"
#include "thrown.hpp"

namespace hangwatch::wrap {
namespace {

using signature::Arguments;
using signature::kMethodCount;
using signature::kMethods;

// What is wrapped besides the collectives.
enum Extra : std::size_t { start_coalescing, end_coalescing, wait, synchronize, kExtras };
constexpr const char* kExtraNames[kExtras] = {"_start_coalescing", "_end_coalescing", "wait",
                                              "synchronize"};
constexpr std::size_t kWrapped = kMethodCount + kExtras;

// A method as it was before, and what replaces it. All of it stays for
// the life of the process: descriptors point to it.
struct Wrapped {
  PyMethodDef definition;
  PyObject* type;       // whose attribute it is; nullptr where torch has no such method
  PyObject* original;   // the function, to be called with self first
  PyObject* attribute;  // as it stands in the class, to be put back
  PyObject* doc;
};
Wrapped g_wrapped[kWrapped];
PyObject* g_resolve = nullptr;
bool g_installed = false;

constexpr Py_ssize_t kArgumentsOnStack = 12;

// The user's call: once, with its own arguments, result and exception.
PyObject* call_original(PyObject* original, PyObject* self, const Arguments& arguments) {
  const Py_ssize_t keywords = arguments.keywords == nullptr ? 0 : PyTuple_Size(arguments.keywords);
  const Py_ssize_t count = arguments.positional + keywords;
  PyObject* on_stack[kArgumentsOnStack + 2];
  PyObject** all = on_stack;
  if (count > kArgumentsOnStack) {
    all = static_cast<PyObject**>(
        PyMem_Malloc(static_cast<std::size_t>(count + 2) * sizeof(PyObject*)));
    if (all == nullptr) return PyErr_NoMemory();
  }
  all[1] = self;
  if (count > 0) {
    std::memcpy(all + 2, arguments.values, static_cast<std::size_t>(count) * sizeof(PyObject*));
  }
  PyObject* result = PyObject_Vectorcall(
      original, all + 1, static_cast<std::size_t>(arguments.positional + 1) | kArgumentsOffset,
      arguments.keywords);
  if (all != on_stack) PyMem_Free(all);
  return result;
}

// An exception that is not ours has come up after the call: the program sees that one, as
// it would if it had come up right behind the call.
PyObject* dropped(PyObject* result) {
  Py_XDECREF(result);
  return nullptr;
}

template <std::size_t kMethod>
PyObject* collective(PyObject* self, PyObject* const* values, Py_ssize_t positional,
                     PyObject* keywords) noexcept {
  const Arguments arguments{values, positional, keywords};
  PyObject* original = g_wrapped[kMethod].original;
  if (!record::armed()) return call_original(original, self, arguments);
  const record::Call call = record::begin(kMethod, self, arguments, g_resolve);
  if (call.slot == record::kInterrupted) return nullptr;
  PyObject* result = call_original(original, self, arguments);
  if (result == nullptr) thrown::keep();
  return record::end(call, self, result) ? result : dropped(result);
}

template <std::size_t kExtra>
PyObject* extra(PyObject* self, PyObject* const* values, Py_ssize_t positional,
                PyObject* keywords) noexcept {
  const Arguments arguments{values, positional, keywords};
  PyObject* original = g_wrapped[kMethodCount + kExtra].original;
  if (!record::armed()) return call_original(original, self, arguments);
  PyObject* result = nullptr;
  if constexpr (kExtra == start_coalescing) {
    if (!record::coalescing_began(self, g_resolve)) return nullptr;
    result = call_original(original, self, arguments);
    // A backend that knows no coalescing raises.
    if (result == nullptr) record::coalescing_ended(self, nullptr);
  } else if constexpr (kExtra == end_coalescing) {
    result = call_original(original, self, arguments);
    if (result == nullptr) thrown::keep();
    if (!record::coalescing_ended(self, result)) return dropped(result);
  } else {
    const record::Wait wait_ = record::wait_begin(self);
    result = call_original(original, self, arguments);
    if (result == nullptr) thrown::keep();
    if (!record::wait_end(wait_, kExtra == wait, result == nullptr)) return dropped(result);
  }
  return result;
}

using Function = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*) noexcept;

template <std::size_t... kMethod>
constexpr Function collective_at(std::size_t i, std::index_sequence<kMethod...>) {
  constexpr Function functions[] = {collective<kMethod>...};
  return functions[i];
}

template <std::size_t... kExtra>
constexpr Function extra_at(std::size_t i, std::index_sequence<kExtra...>) {
  constexpr Function functions[] = {extra<kExtra>...};
  return functions[i];
}

const char* name_of(std::size_t i) {
  return i < kMethodCount ? kMethods[i].name : kExtraNames[i - kMethodCount];
}

Function function_of(std::size_t i) {
  return i < kMethodCount ? collective_at(i, std::make_index_sequence<kMethodCount>())
                          : extra_at(i - kMethodCount, std::make_index_sequence<kExtras>());
}

// What stands in the class itself, or nullptr (with an exception if it failed).
PyObject* own_attribute(PyObject* type, const char* name) {
  const Ref dict(PyObject_GetAttrString(type, "__dict__"));
  if (!dict) return nullptr;
  PyObject* attribute = PyMapping_GetItemString(dict.get(), name);
  if (attribute == nullptr && PyErr_ExceptionMatches(PyExc_KeyError) != 0) PyErr_Clear();
  return attribute;
}

bool install(std::size_t i, PyObject* type) {
  Wrapped& wrapped = g_wrapped[i];
  const char* name = name_of(i);
  Ref attribute(own_attribute(type, name));
  if (!attribute) return PyErr_Occurred() == nullptr;
  // Read through the class, pybind11's instancemethod gives its function.
  Ref original(PyObject_GetAttrString(type, name));
  if (!original) return false;
  Ref doc(PyObject_GetAttrString(original.get(), "__doc__"));
  const char* text = nullptr;
  if (doc && PyUnicode_Check(doc.get())) text = PyUnicode_AsUTF8AndSize(doc.get(), nullptr);
  PyErr_Clear();
  wrapped.definition.ml_name = name;
  wrapped.definition.ml_meth =
      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function_of(i)));
  wrapped.definition.ml_flags = METH_FASTCALL | METH_KEYWORDS;
  wrapped.definition.ml_doc = text;
  const Ref descriptor(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type), &wrapped.definition));
  if (!descriptor) return false;
  PyObject* before = wrapped.original;
  wrapped.doc = doc.release();
  wrapped.original = original.release();
  wrapped.attribute = attribute.release();
  if (PyObject_SetAttrString(type, name, descriptor.get()) != 0) {
    wrapped.original = before;
    return false;
  }
  Py_INCREF(type);
  wrapped.type = type;
  return true;
}

PyObject* names() {
  Ref list(PyList_New(0));
  for (std::size_t i = 0; list && i < kWrapped; ++i) {
    if (g_wrapped[i].type == nullptr) continue;
    const Ref name(PyUnicode_FromString(name_of(i)));
    if (!name || PyList_Append(list.get(), name.get()) != 0) return nullptr;
  }
  return list.release();
}

}  // namespace

PyObject* wrap_methods(PyObject* process_group, PyObject* work, PyObject* resolve) {
  if (g_installed) return names();
  if (!groups::setup(process_group) || !thrown::setup()) return nullptr;
  Py_INCREF(resolve);
  g_resolve = resolve;
  for (std::size_t i = 0; i < kWrapped; ++i) {
    const bool of_work = i == kMethodCount + wait || i == kMethodCount + synchronize;
    if (!install(i, of_work ? work : process_group)) {
      PyObject* type = nullptr;
      PyObject* value = nullptr;
      PyObject* traceback = nullptr;
      PyErr_Fetch(&type, &value, &traceback);
      if (!unwrap_methods()) PyErr_Clear();
      PyErr_Restore(type, value, traceback);
      return nullptr;
    }
  }
  g_installed = true;
  return names();
}

bool unwrap_methods() {
  bool good = true;
  for (std::size_t i = 0; i < kWrapped; ++i) {
    Wrapped& wrapped = g_wrapped[i];
    if (wrapped.type == nullptr) continue;
    // The original stays: bound methods of the wrapper may still be called.
    if (PyObject_SetAttrString(wrapped.type, name_of(i), wrapped.attribute) != 0) good = false;
    Py_DECREF(wrapped.type);
    wrapped.type = nullptr;
  }
  g_installed = false;
  groups::teardown();
  return good;
}

}  // namespace hangwatch::wrap
