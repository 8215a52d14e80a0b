// Holds Python's garbage collector for a thread of ours, unseen by the program.
//
// The collector is one switch of the process. Off while we work and on again after that would undo
// what the program does with it meanwhile, and show it a switch that it has not turned. So the
// program's functions for it are answered from here: what it asks for is what it sees, and what it
// gets once we are done.

#include "collector.hpp"

#include <string>

namespace hangwatch::collector {
namespace {

// All under the GIL.
bool g_held = false;
bool g_wanted = true;  // by the program, while it is held

PyObject* none() { return Py_NewRef(Py_None); }

PyObject* enable(PyObject*, PyObject*) {
  if (g_held) {
    g_wanted = true;
  } else {
    PyGC_Enable();
  }
  return none();
}

PyObject* disable(PyObject*, PyObject*) {
  g_wanted = false;
  PyGC_Disable();
  return none();
}

PyObject* is_enabled(PyObject*, PyObject*) {
  return PyBool_FromLong(g_held ? g_wanted : PyGC_IsEnabled());
}

PyMethodDef kFunctions[] = {
    {"enable", enable, METH_NOARGS, nullptr},
    {"disable", disable, METH_NOARGS, nullptr},
    {"isenabled", is_enabled, METH_NOARGS, nullptr},
};
std::string g_docs[sizeof(kFunctions) / sizeof(*kFunctions)];

// The help of a builtin function begins with its signature, which Python takes off it.
bool take_help(PyObject* gc, PyMethodDef& function, std::string& doc) {
  const Ref original(PyObject_GetAttrString(gc, function.ml_name));
  const Ref help(original ? PyObject_GetAttrString(original.get(), "__doc__") : nullptr);
  if (!help) return false;
  doc = std::string(function.ml_name) + "($module, /)\n--\n\n";
  if (PyUnicode_Check(help.get()) != 0) {
    const char* text = PyUnicode_AsUTF8AndSize(help.get(), nullptr);
    if (text == nullptr) return false;
    doc += text;
  }
  function.ml_doc = doc.c_str();
  return true;
}

}  // namespace

bool watch() {
  static bool done = false;
  if (done) return true;
  const Ref gc(PyImport_ImportModule("gc"));
  const Ref name(PyUnicode_FromString("gc"));
  if (!gc || !name) return false;
  std::size_t at = 0;
  for (PyMethodDef& function : kFunctions) {
    if (!take_help(gc.get(), function, g_docs[at++])) return false;
    const Ref ours(PyCFunction_NewEx(&function, gc.get(), name.get()));
    if (!ours || PyObject_SetAttrString(gc.get(), function.ml_name, ours.get()) != 0) return false;
  }
  done = true;
  return true;
}

void hold() noexcept {
  if (g_held) return;
  g_wanted = PyGC_Disable() != 0;
  g_held = true;
}

void release() noexcept {
  if (!g_held) return;
  g_held = false;
  if (g_wanted) PyGC_Enable();
}

}  // namespace hangwatch::collector
