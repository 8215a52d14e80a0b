#include "thrown.hpp"

#include <string>

namespace hangwatch::thrown {
namespace {

constexpr std::size_t kMaxText = 16000;  // what takes out secrets looks at 4,000 characters
// BaseException.args.__get__: the interpreter's own, whatever a class makes of `args`.
PyObject* g_args_of = nullptr;
std::string g_type;
std::string g_text;

// UTF-8 of an exact str, else nothing; an exception of ours is cleared.
std::string text_of(PyObject* object) {
  if (object == nullptr || PyUnicode_CheckExact(object) == 0) return "";
  // Not all of it: the object would keep its UTF-8, as large as the text may be.
  const auto most = static_cast<Py_ssize_t>(kMaxText);
  const Ref part(PyUnicode_GetLength(object) > most ? PyUnicode_Substring(object, 0, most)
                                                    : Py_NewRef(object));
  Py_ssize_t size = 0;
  const char* utf8 = part ? PyUnicode_AsUTF8AndSize(part.get(), &size) : nullptr;
  if (utf8 == nullptr) {
    PyErr_Clear();
    return "";
  }
  return {utf8, static_cast<std::size_t>(size)};
}

std::string text_of_exception(PyObject* value) {
  if (value == nullptr || PyUnicode_CheckExact(value) != 0) return text_of(value);
  if (PyObject_TypeCheck(value, reinterpret_cast<PyTypeObject*>(PyExc_BaseException)) == 0) {
    return "";
  }
  const Ref arguments(PyObject_CallFunctionObjArgs(g_args_of, value, nullptr));
  if (!arguments || PyTuple_CheckExact(arguments.get()) == 0 ||
      PyTuple_Size(arguments.get()) != 1) {
    PyErr_Clear();
    return "";
  }
  return text_of(PyTuple_GetItem(arguments.get(), 0));
}

// At most so many bytes, and whole characters.
void cut(std::string& text) {
  if (text.size() <= kMaxText) return;
  std::size_t size = kMaxText;
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0U) == 0x80U) --size;
  text.resize(size);
}

}  // namespace

bool setup() {
  if (g_args_of != nullptr) return true;
  const Ref descriptor(PyObject_GetAttrString(PyExc_BaseException, "args"));
  if (!descriptor) return false;
  g_args_of = PyObject_GetAttrString(descriptor.get(), "__get__");
  return g_args_of != nullptr;
}

void keep() noexcept {
  if (g_args_of == nullptr || PyErr_Occurred() == nullptr) return;
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  try {
    const Ref name(PyType_Check(type) != 0
                       ? PyType_GetQualName(reinterpret_cast<PyTypeObject*>(type))
                       : nullptr);
    g_type = text_of(name.get());
    g_text = text_of_exception(value);
    cut(g_type);
    cut(g_text);
  } catch (...) {  // no memory for it
    g_type.clear();
    g_text.clear();
  }
  PyErr_Clear();
  PyErr_Restore(type, value, traceback);
}

PyObject* last() {
  return Py_BuildValue("s#s#", g_type.data(), static_cast<Py_ssize_t>(g_type.size()), g_text.data(),
                       static_cast<Py_ssize_t>(g_text.size()));
}

}  // namespace hangwatch::thrown
