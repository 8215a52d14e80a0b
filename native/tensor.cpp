#include "tensor.hpp"

#include <string_view>

#include "foreign.hpp"
#include "writer.hpp"

namespace hangwatch::tensor {
namespace {

// --- DLPack (github.com/dmlc/dlpack, dlpack.h, version 1) -----------------------
// What torch hands out in C costs a fifth of its attributes. The parts of the
// structures that we use, with their layout.

struct DlTensor {
  void* data;
  std::int32_t device_type;
  std::int32_t device_id;
  std::int32_t ndim;
  std::uint32_t dtype;  // code, bits and lanes in one
  const std::int64_t* shape;
  const std::int64_t* strides;
  std::uint64_t byte_offset;
};
constexpr std::int32_t kDlCpu = 1;
constexpr std::int32_t kDlCuda = 2;

struct DlExchangeApi {
  std::uint32_t major;
  std::uint32_t minor;
  const DlExchangeApi* previous;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object_no_sync;
  void* managed_tensor_to_py_object_no_sync;
  int (*dltensor_from_py_object_no_sync)(void* object, DlTensor* out);
  void* current_work_stream;
};

using FromObject = int (*)(void* object, DlTensor* out);

FromObject from_object_of(PyObject* type) {
  const Ref capsule(PyObject_GetAttrString(type, "__dlpack_c_exchange_api__"));
  const auto* api = capsule ? static_cast<const DlExchangeApi*>(
                                  PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"))
                            : nullptr;
  if (!foreign::is_set()) PyErr_Clear();  // torch before 2.10 has no such attribute
  return api != nullptr && api->major == 1 ? api->dltensor_from_py_object_no_sync : nullptr;
}

// --- What was seen before -----------------------------------------------------------

// Names by DLPack's code. Few, and the one of the last call is the likeliest.
struct Dtype {
  std::uint32_t code;
  std::uint32_t name;
};
constexpr std::size_t kDtypes = 64;
Dtype g_dtypes[kDtypes];
std::size_t g_dtype_count = 0;

struct Type {
  PyTypeObject* type;
  bool plain;              // a look at its attributes runs no code of the user's
  FromObject from_object;  // nullptr where torch has none, or it has failed
};
constexpr std::size_t kTypes = 32;
Type g_types[kTypes];
std::size_t g_type_count = 0;
Type g_other;

PyObject* g_dtype = nullptr;
PyObject* g_shape = nullptr;
PyObject* g_is_cpu = nullptr;
PyObject* g_is_cuda = nullptr;
PyObject* g_get_device = nullptr;

// A subclass of Tensor with a __torch_function__ of its own would see us look.
// torch marks those that have none by a function that it keeps for this.
bool is_plain(PyObject* type) {
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* module = PyDict_GetItemString(modules, "torch");
  const Ref base(module != nullptr ? PyObject_GetAttrString(module, "Tensor") : nullptr);
  const Ref core(base ? PyObject_GetAttrString(module, "_C") : nullptr);
  const Ref disabled(core ? PyObject_GetAttrString(core.get(), "_disabled_torch_function_impl")
                          : nullptr);
  const Ref own(disabled ? PyObject_GetAttrString(type, "__torch_function__") : nullptr);
  if (!foreign::is_set()) PyErr_Clear();
  return own && (type == base.get() || own.get() == disabled.get());
}

Type& type_of(PyTypeObject* type) {
  for (std::size_t i = 0; i < g_type_count; ++i) {
    if (g_types[i].type == type) return g_types[i];
  }
  auto* object = reinterpret_cast<PyObject*>(type);
  const bool plain = is_plain(object);
  const FromObject from_object = plain ? from_object_of(object) : nullptr;
  // Told before it is put anywhere: what was asked may have run code that came here.
  Type& entry = g_type_count < kTypes ? g_types[g_type_count++] : g_other;
  auto* before = reinterpret_cast<PyObject*>(entry.type);
  Py_INCREF(object);  // its address stays its own
  entry = Type{type, plain, from_object};
  Py_XDECREF(before);
  return entry;
}

bool name_of(PyObject* tensor, std::uint32_t& name) {
  const Ref dtype(PyObject_GetAttr(tensor, g_dtype));
  const Ref text(dtype ? PyObject_Str(dtype.get()) : nullptr);
  Py_ssize_t size = 0;
  const char* utf8 = text ? PyUnicode_AsUTF8AndSize(text.get(), &size) : nullptr;
  if (utf8 == nullptr) return false;
  std::string_view view(utf8, static_cast<std::size_t>(size));
  constexpr std::string_view kPrefix = "torch.";
  if (view.substr(0, kPrefix.size()) == kPrefix) view.remove_prefix(kPrefix.size());
  name = writer::intern(view);
  return true;
}

bool name_of_code(PyObject* tensor, std::uint32_t code, std::uint32_t& name) {
  for (std::size_t i = 0; i < g_dtype_count; ++i) {
    if (g_dtypes[i].code == code) {
      name = g_dtypes[i].name;
      return true;
    }
  }
  if (!name_of(tensor, name)) return false;
  if (g_dtype_count < kDtypes) g_dtypes[g_dtype_count++] = Dtype{code, name};
  return true;
}

// Of more dimensions than there is room for, the first are told.
std::uint16_t dims_told(std::int64_t ndim) {
  const auto room = static_cast<std::int64_t>(kMaxDims);
  return static_cast<std::uint16_t>(ndim < room ? ndim : room);
}

bool read_attributes(PyObject* tensor, bool want_device, EventData& event, groups::Device& device) {
  if (!name_of(tensor, event.dtype)) return false;
  const Ref shape(PyObject_GetAttr(tensor, g_shape));
  const Py_ssize_t ndim = shape ? PyTuple_Size(shape.get()) : -1;
  if (ndim < 0) return false;
  event.ndim = dims_told(ndim);
  for (std::uint16_t i = 0; i < event.ndim; ++i) {
    event.shape[i] = PyLong_AsLongLong(PyTuple_GetItem(shape.get(), i));
    if (event.shape[i] == -1 && PyErr_Occurred() != nullptr) return false;
  }
  if (!want_device) return true;
  const Ref is_cpu(PyObject_GetAttr(tensor, g_is_cpu));
  if (!is_cpu) return false;
  device = is_cpu.get() == Py_True ? groups::Device::cpu : groups::Device::other;
  if (device == groups::Device::cpu) return true;
  const Ref is_cuda(PyObject_GetAttr(tensor, g_is_cuda));
  if (!is_cuda) return false;
  if (is_cuda.get() != Py_True) return true;
  PyObject* args[2] = {nullptr, tensor};
  const Ref ordinal(
      PyObject_VectorcallMethod(g_get_device, args + 1, 1 | kArgumentsOffset, nullptr));
  if (!ordinal) return false;
  event.device = static_cast<std::int32_t>(PyLong_AsLong(ordinal.get()));
  return PyErr_Occurred() == nullptr;
}

}  // namespace

bool setup() {
  g_dtype = PyUnicode_InternFromString("dtype");
  g_shape = PyUnicode_InternFromString("shape");
  g_is_cpu = PyUnicode_InternFromString("is_cpu");
  g_is_cuda = PyUnicode_InternFromString("is_cuda");
  g_get_device = PyUnicode_InternFromString("get_device");
  return g_dtype != nullptr && g_shape != nullptr && g_is_cpu != nullptr && g_is_cuda != nullptr &&
         g_get_device != nullptr;
}

void forget() { g_dtype_count = 0; }

bool read(PyObject* tensor, bool want_device, EventData& event, groups::Device& device) {
  Type& type = type_of(Py_TYPE(tensor));
  if (PyErr_Occurred() != nullptr) return false;
  if (!type.plain) return true;
  DlTensor seen;
  if (type.from_object != nullptr && type.from_object(tensor, &seen) != 0) {
    // A tensor without memory, or of a dtype that DLPack has not.
    if (foreign::is_set()) return false;
    PyErr_Clear();
    type.from_object = nullptr;
  }
  if (type.from_object == nullptr) return read_attributes(tensor, want_device, event, device);
  event.ndim = dims_told(seen.ndim);
  for (std::uint16_t i = 0; i < event.ndim; ++i) event.shape[i] = seen.shape[i];
  device = seen.device_type == kDlCpu ? groups::Device::cpu : groups::Device::other;
  if (seen.device_type == kDlCuda) event.device = seen.device_id;
  return name_of_code(tensor, seen.dtype, event.dtype);
}

}  // namespace hangwatch::tensor
