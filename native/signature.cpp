#include "signature.hpp"

#include <string_view>

#include "writer.hpp"

namespace hangwatch::signature {
namespace {

PyObject* g_dtype = nullptr;
PyObject* g_shape = nullptr;
PyObject* g_is_cpu = nullptr;
PyObject* g_root_rank = nullptr;
PyObject* g_async_op = nullptr;

// torch has a few dozen dtypes, each one object for ever.
struct Dtype {
  PyObject* object;
  std::uint32_t name;
};
constexpr std::size_t kDtypes = 64;
Dtype g_dtypes[kDtypes];
std::size_t g_dtype_count = 0;

// Types of options: whether they have asyncOp (torch 2.8 and later).
struct Options {
  PyTypeObject* type;
  bool has_async_op;
};
constexpr std::size_t kOptions = 32;
Options g_options[kOptions];
std::size_t g_options_count = 0;

// Types of tensors: whether a look at an attribute runs the user's code.
struct TensorType {
  PyTypeObject* type;
  bool plain;
};
constexpr std::size_t kTensorTypes = 32;
TensorType g_tensor_types[kTensorTypes];
std::size_t g_tensor_type_count = 0;

PyObject* argument(const Arguments& arguments, int position, const char* keyword,
                   const char* other_keyword) {
  if (position < 0) return nullptr;
  if (position < arguments.positional) return arguments.values[position];
  if (arguments.keywords == nullptr) return nullptr;
  const Py_ssize_t count = PyTuple_Size(arguments.keywords);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* name = PyTuple_GetItem(arguments.keywords, i);
    if ((keyword != nullptr && PyUnicode_CompareWithASCIIString(name, keyword) == 0) ||
        (other_keyword != nullptr && PyUnicode_CompareWithASCIIString(name, other_keyword) == 0)) {
      return arguments.values[arguments.positional + i];
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

// A subclass of Tensor with a __torch_function__ of its own would see us look.
// torch marks those that have none by a function that it keeps for this.
bool is_plain(PyTypeObject* type) {
  for (std::size_t i = 0; i < g_tensor_type_count; ++i) {
    if (g_tensor_types[i].type == type) return g_tensor_types[i].plain;
  }
  bool plain = false;
  const Ref module(PyImport_ImportModule("torch"));
  const Ref tensor(module ? PyObject_GetAttrString(module.get(), "Tensor") : nullptr);
  const Ref core(module ? PyObject_GetAttrString(module.get(), "_C") : nullptr);
  const Ref disabled(core ? PyObject_GetAttrString(core.get(), "_disabled_torch_function_impl")
                          : nullptr);
  if (disabled) {
    auto* object = reinterpret_cast<PyObject*>(type);
    const Ref own(PyObject_GetAttrString(object, "__torch_function__"));
    plain = object == tensor.get() || (own && own.get() == disabled.get());
  }
  PyErr_Clear();
  if (g_tensor_type_count < kTensorTypes) {
    Py_INCREF(reinterpret_cast<PyObject*>(type));
    g_tensor_types[g_tensor_type_count++] = TensorType{type, plain};
  }
  return plain;
}

bool dtype_name(PyObject* dtype, std::uint32_t& name) {
  for (std::size_t i = 0; i < g_dtype_count; ++i) {
    if (g_dtypes[i].object == dtype) {
      name = g_dtypes[i].name;
      return true;
    }
  }
  const Ref text(PyObject_Str(dtype));
  if (!text) return false;
  Py_ssize_t size = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(text.get(), &size);
  if (utf8 == nullptr) return false;
  std::string_view view(utf8, static_cast<std::size_t>(size));
  constexpr std::string_view kPrefix = "torch.";
  if (view.substr(0, kPrefix.size()) == kPrefix) view.remove_prefix(kPrefix.size());
  name = writer::intern(view);
  if (g_dtype_count < kDtypes) {
    Py_INCREF(dtype);
    g_dtypes[g_dtype_count++] = Dtype{dtype, name};
  }
  return true;
}

bool read_tensor(PyObject* tensor, bool want_device, EventData& event, groups::Device& device) {
  if (!is_plain(Py_TYPE(tensor))) return true;
  const Ref dtype(PyObject_GetAttr(tensor, g_dtype));
  if (!dtype || !dtype_name(dtype.get(), event.dtype)) return false;
  const Ref shape(PyObject_GetAttr(tensor, g_shape));
  const Py_ssize_t ndim = shape ? PyTuple_Size(shape.get()) : -1;
  if (ndim < 0) return false;
  // Of more dimensions than there is room for, the first are told.
  event.ndim = static_cast<std::uint16_t>(ndim < Py_ssize_t{kMaxDims} ? ndim : kMaxDims);
  for (std::uint16_t i = 0; i < event.ndim; ++i) {
    event.shape[i] = PyLong_AsLongLong(PyTuple_GetItem(shape.get(), i));
    if (event.shape[i] == -1 && PyErr_Occurred() != nullptr) return false;
  }
  if (!want_device) return true;
  const Ref is_cpu(PyObject_GetAttr(tensor, g_is_cpu));
  if (!is_cpu) return false;
  device = is_cpu.get() == Py_True ? groups::Device::cpu : groups::Device::other;
  return true;
}

bool has_async_op(PyTypeObject* type) {
  for (std::size_t i = 0; i < g_options_count; ++i) {
    if (g_options[i].type == type) return g_options[i].has_async_op;
  }
  const Ref attribute(PyObject_GetAttr(reinterpret_cast<PyObject*>(type), g_async_op));
  if (!attribute) PyErr_Clear();
  if (g_options_count < kOptions) {
    Py_INCREF(reinterpret_cast<PyObject*>(type));
    g_options[g_options_count++] = Options{type, static_cast<bool>(attribute)};
  }
  return static_cast<bool>(attribute);
}

bool to_integer(PyObject* value, std::int64_t& number) {
  number = PyLong_AsLongLong(value);
  return number != -1 || PyErr_Occurred() == nullptr;
}

bool read_options(const Method& method, PyObject* options, const groups::Slot& slot,
                  EventData& event) {
  std::int64_t root = -1;
  if (PyLong_Check(options)) {
    if (method.rooted && !to_integer(options, root)) return false;
  } else {
    if (has_async_op(Py_TYPE(options))) {
      const Ref is_async(PyObject_GetAttr(options, g_async_op));
      if (!is_async) return false;
      event.is_async = is_async.get() == Py_True;
    }
    if (method.rooted) {
      const Ref value(PyObject_GetAttr(options, g_root_rank));
      if (!value || !to_integer(value.get(), root)) return false;
    }
  }
  event.root = groups::global_rank(slot, root);
  return true;
}

}  // namespace

bool setup() {
  g_dtype = PyUnicode_InternFromString("dtype");
  g_shape = PyUnicode_InternFromString("shape");
  g_is_cpu = PyUnicode_InternFromString("is_cpu");
  g_root_rank = PyUnicode_InternFromString("rootRank");
  g_async_op = PyUnicode_InternFromString("asyncOp");
  return g_dtype != nullptr && g_shape != nullptr && g_is_cpu != nullptr &&
         g_root_rank != nullptr && g_async_op != nullptr;
}

void forget() {
  while (g_dtype_count > 0) {
    PyObject* dtype = g_dtypes[--g_dtype_count].object;
    Py_DECREF(dtype);
  }
}

bool read(const Method& method, const Arguments& arguments, const groups::Slot& slot,
          bool want_device, EventData& event, groups::Device& device) {
  PyObject* tensor = first_tensor(
      argument(arguments, method.tensor, method.tensor_keywords[0], method.tensor_keywords[1]));
  if (tensor != nullptr && !read_tensor(tensor, want_device, event, device)) return false;
  PyObject* options = argument(arguments, method.options, "opts", method.rooted ? "root" : nullptr);
  if (options != nullptr && !read_options(method, options, slot, event)) return false;
  std::int64_t number = -1;
  if (PyObject* peer = argument(arguments, method.peer, "dstRank", "srcRank")) {
    if (!to_integer(peer, number)) return false;
    event.peer = groups::global_rank(slot, number);
  }
  if (PyObject* tag = argument(arguments, method.tag, "tag", nullptr)) {
    if (!to_integer(tag, event.tag)) return false;
  }
  return true;
}

}  // namespace hangwatch::signature
