#include "foreign.hpp"

namespace hangwatch::foreign {
namespace {

PyObject* g_judge = nullptr;

}  // namespace

void set_judge(PyObject* judge) {
  Py_XINCREF(judge);
  PyObject* before = g_judge;
  g_judge = judge;
  Py_XDECREF(before);
}

bool is_set() noexcept {
  if (PyErr_Occurred() == nullptr) return false;
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0) return true;
  if (g_judge == nullptr) return false;
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  bool foreign = false;
  // Without one it was raised in C, where nobody calls the program's handlers.
  if (traceback != nullptr) {
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != nullptr) PyException_SetTraceback(value, traceback);
    PyObject* args[2] = {nullptr, value};
    const Ref judge([] {
      Py_INCREF(g_judge);
      return g_judge;
    }());
    const Ref answer(PyObject_Vectorcall(judge.get(), args + 1, 1 | kArgumentsOffset, nullptr));
    if (!answer && PyErr_ExceptionMatches(PyExc_Exception) == 0) {
      restore_unless_set(type, value, traceback);  // it was interrupted in its turn
      return true;
    }
    PyErr_Clear();
    foreign = answer.get() == Py_True;
  }
  PyErr_Restore(type, value, traceback);
  return foreign;
}

void restore_unless_set(PyObject* type, PyObject* value, PyObject* traceback) noexcept {
  if (PyErr_Occurred() == nullptr) {
    PyErr_Restore(type, value, traceback);
    return;
  }
  PyObject* new_type = nullptr;
  PyObject* new_value = nullptr;
  PyObject* new_traceback = nullptr;
  PyErr_Fetch(&new_type, &new_value, &new_traceback);
  if (type != nullptr) {
    PyErr_NormalizeException(&type, &value, &traceback);
    PyErr_NormalizeException(&new_type, &new_value, &new_traceback);
    if (traceback != nullptr) PyException_SetTraceback(value, traceback);
    if (value != nullptr && value != new_value) {
      Py_INCREF(value);
      PyException_SetContext(new_value, value);
    }
  }
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
  PyErr_Restore(new_type, new_value, new_traceback);
}

}  // namespace hangwatch::foreign
