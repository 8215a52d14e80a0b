#include "signature.hpp"

#include "tensor.hpp"

namespace hangwatch::signature {
namespace {

PyObject* g_root_rank = nullptr;

PyObject* argument(const Arguments& arguments, const Parameter& parameter) {
  if (parameter.position < 0) return nullptr;
  if (parameter.position < arguments.positional) return arguments.values[parameter.position];
  if (arguments.keywords == nullptr) return nullptr;
  const Py_ssize_t count = PyTuple_Size(arguments.keywords);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* name = PyTuple_GetItem(arguments.keywords, i);
    for (const char* known : parameter.names) {
      if (known != nullptr && PyUnicode_CompareWithASCIIString(name, known) == 0) {
        return arguments.values[arguments.positional + i];
      }
    }
  }
  return nullptr;
}

PyObject* first_tensor(PyObject* value) {
  for (int depth = 0; depth < 2 && value != nullptr; ++depth) {
    if (PyList_Check(value)) {
      value = PyList_Size(value) > 0 ? PyList_GetItem(value, 0) : nullptr;
    } else if (PyTuple_Check(value)) {
      value = PyTuple_Size(value) > 0 ? PyTuple_GetItem(value, 0) : nullptr;
    }
  }
  return value;
}

bool to_integer(PyObject* value, std::int64_t& number) {
  number = PyLong_AsLongLong(value);
  return number != -1 || PyErr_Occurred() == nullptr;
}

// The options hold the root as a rank of the group; some forms take it as it is.
bool read_root(PyObject* options, const groups::Slot& slot, EventData& event) {
  std::int64_t root = -1;
  if (PyLong_Check(options)) {
    if (!to_integer(options, root)) return false;
  } else {
    const Ref value(PyObject_GetAttr(options, g_root_rank));
    if (!value || !to_integer(value.get(), root)) return false;
  }
  event.root = groups::global_rank(slot, root);
  return true;
}

// Returns how many sizes there are, 0 for anything but a list of plain integers.
std::uint32_t read_sizes(PyObject* value, std::int32_t (&sizes)[kMaxSplits]) noexcept {
  if (value == nullptr || !PyList_Check(value)) return 0;
  const Py_ssize_t count = PyList_Size(value);
  if (count > static_cast<Py_ssize_t>(kMaxSplits)) return 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PyList_GetItem(value, i);
    if (item == nullptr || !PyLong_CheckExact(item)) return 0;
    int overflow = 0;
    const long size = PyLong_AsLongAndOverflow(item, &overflow);
    if (overflow != 0 || size < 0 || size > INT32_MAX) return 0;
    sizes[i] = static_cast<std::int32_t>(size);
  }
  return static_cast<std::uint32_t>(count);
}

}  // namespace

bool setup() {
  g_root_rank = PyUnicode_InternFromString("rootRank");
  return g_root_rank != nullptr && tensor::setup();
}

bool read(const Method& method, const Arguments& arguments, const groups::Slot& slot,
          bool want_device, EventData& event, groups::Device& device) {
  PyObject* first = first_tensor(argument(arguments, method.tensor));
  if (first != nullptr && !tensor::read(first, want_device, event, device)) return false;
  PyObject* root = argument(arguments, method.root);
  if (root != nullptr && !read_root(root, slot, event)) return false;
  std::int64_t number = -1;
  if (PyObject* peer = argument(arguments, method.peer)) {
    if (!to_integer(peer, number)) return false;
    event.peer = groups::global_rank(slot, number);
  }
  if (PyObject* tag = argument(arguments, method.tag)) return to_integer(tag, event.tag);
  return true;
}

bool read_splits(const Method& method, const Arguments& arguments, std::uint64_t index,
                 SplitsData& splits) noexcept {
  splits.index = index;
  splits.sends = read_sizes(argument(arguments, method.sends), splits.sent);
  splits.receives = read_sizes(argument(arguments, method.receives), splits.received);
  return splits.sends != 0 || splits.receives != 0;
}

}  // namespace hangwatch::signature
