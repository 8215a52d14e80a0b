// hangwatch._native: binds the page and the wrappers to Python (see _native.pyi).

#include <algorithm>
#include <cerrno>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.hpp"
#include "beacon.hpp"
#include "callsite.hpp"
#include "collector.hpp"
#include "dump.hpp"
#include "foreign.hpp"
#include "python.hpp"
#include "reader.hpp"
#include "record.hpp"
#include "streams.hpp"
#include "thrown.hpp"
#include "values.hpp"
#include "wrap.hpp"
#include "writer.hpp"

namespace hangwatch {
namespace {

PyObject* py_read_page(PyObject*, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"data", "events", nullptr};
  PyObject* data = nullptr;
  int events = 1;
  if (PyArg_ParseTupleAndKeywords(args, keywords, "O|p", const_cast<char**>(names), &data,
                                  &events) == 0) {
    return nullptr;
  }
  Py_buffer buffer;
  if (PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE) != 0) return nullptr;
  PyObject* result = guarded([&]() -> PyObject* {
    PageView view{};
    const std::string why = read_page(static_cast<const unsigned char*>(buffer.buf),
                                      static_cast<std::size_t>(buffer.len), events != 0, view);
    if (why.empty()) return to_dict(view, events != 0);
    PyErr_SetString(PyExc_ValueError, why.c_str());
    return nullptr;
  });
  PyBuffer_Release(&buffer);
  return result;
}

PyObject* py_read_moments(PyObject*, PyObject* args) {
  PyObject* data = nullptr;
  unsigned long long after = 0;
  if (PyArg_ParseTuple(args, "OK", &data, &after) == 0) return nullptr;
  Py_buffer buffer;
  if (PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE) != 0) return nullptr;
  PyObject* result = guarded([&]() -> PyObject* {
    std::vector<MomentData> moments;
    const std::string why = read_moments(static_cast<const unsigned char*>(buffer.buf),
                                         static_cast<std::size_t>(buffer.len), after, moments);
    if (why.empty()) return to_list(moments);
    PyErr_SetString(PyExc_ValueError, why.c_str());
    return nullptr;
  });
  PyBuffer_Release(&buffer);
  return result;
}

PyObject* py_open_page(PyObject*, PyObject* args) {
  PyObject* path = nullptr;
  PyObject* dict = nullptr;
  if (PyArg_ParseTuple(args, "O&O!", PyUnicode_FSConverter, &path, &PyDict_Type, &dict) == 0) {
    return nullptr;
  }
  const Ref path_owner(path);
  return guarded([&]() -> PyObject* {
    writer::Identity identity;
    if (!identity_from(dict, identity)) return nullptr;
    const char* file = PyBytes_AsString(path);
    if (file == nullptr) return nullptr;
    const int error = writer::open(file, identity);
    if (error == EALREADY) {
      PyErr_SetString(PyExc_RuntimeError, "this process has a rank page already");
      return nullptr;
    }
    if (error != 0) {
      errno = error;
      return PyErr_SetFromErrnoWithFilename(PyExc_OSError, file);
    }
    record::reset();
    return none();
  });
}

// For tests, which open many pages in one process: a rank keeps its page until it ends.
PyObject* py_close_page(PyObject*, PyObject*) {
  Py_BEGIN_ALLOW_THREADS;
  writer::stop_heartbeat();
  Py_END_ALLOW_THREADS;
  writer::close();
  return none();
}

PyObject* py_start_heartbeat(PyObject*, PyObject* args) {
  unsigned long long interval_ms = 0;
  int with_moments = 0;
  if (PyArg_ParseTuple(args, "K|p", &interval_ms, &with_moments) == 0) return nullptr;
  const int error = writer::start_heartbeat(interval_ms, with_moments != 0);
  if (error == 0) return none();
  errno = error;
  return PyErr_SetFromErrno(PyExc_OSError);
}

PyObject* py_stop_heartbeat(PyObject*, PyObject*) {
  Py_BEGIN_ALLOW_THREADS;
  writer::stop_heartbeat();
  Py_END_ALLOW_THREADS;
  return none();
}

// Without a tuple of arguments, which could start a collection of garbage in the caller's thread.
PyObject* py_wait_for_request(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "wait_for_request() takes 2 positional arguments");
    return nullptr;
  }
  const auto seen = static_cast<std::uint32_t>(PyLong_AsUnsignedLong(args[0]));
  const double seconds = PyFloat_AsDouble(args[1]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  std::uint32_t now = 0;
  Py_BEGIN_ALLOW_THREADS;
  now = writer::wait_for_request(seen, seconds);
  Py_END_ALLOW_THREADS;
  return PyLong_FromUnsignedLong(now);
}

PyObject* py_watch_collector(PyObject*, PyObject*) { return collector::watch() ? none() : nullptr; }

PyObject* py_hold_collector(PyObject*, PyObject*) {
  collector::hold();
  return none();
}

PyObject* py_let_collect(PyObject*, PyObject*) {
  collector::release();
  return none();
}

PyObject* py_ring(PyObject*, PyObject*) {
  writer::ring();
  return none();
}

PyObject* py_use_dumps(PyObject*, PyObject* args) {
  int nccl = 0;
  int general = 0;
  if (PyArg_ParseTuple(args, "pp", &nccl, &general) == 0) return nullptr;
  bool found = false;
  Py_BEGIN_ALLOW_THREADS;  // the loader of libraries may be busy
  found = dump::use(nccl != 0, general != 0);
  Py_END_ALLOW_THREADS;
  return PyBool_FromLong(found);
}

PyObject* py_add_dump(PyObject*, PyObject* args) {
  const char* backend = nullptr;
  if (PyArg_ParseTuple(args, "s", &backend) == 0) return nullptr;
  dump::add(backend);
  return none();
}

PyObject* py_answer_request(PyObject*, PyObject*) { return PyBool_FromLong(dump::answer()); }

PyObject* py_ring_at(PyObject*, PyObject* args) {
  PyObject* path = nullptr;
  if (PyArg_ParseTuple(args, "O&", PyUnicode_FSConverter, &path) == 0) return nullptr;
  const Ref holder(path);
  errno = writer::ring_at(PyBytes_AsString(path));
  if (errno != 0) return PyErr_SetFromErrno(PyExc_OSError);
  return none();
}

PyObject* py_set_identity(PyObject*, PyObject* args) {
  int rank = -1;
  int world_size = -1;
  const char* host = "";
  Py_ssize_t host_size = 0;
  int port = 0;
  if (PyArg_ParseTuple(args, "iis#i", &rank, &world_size, &host, &host_size, &port) == 0) {
    return nullptr;
  }
  writer::set_identity(rank, world_size,
                       std::string_view(host, static_cast<std::size_t>(host_size)), port);
  return none();
}

PyObject* py_set_phase(PyObject*, PyObject* args) {
  const char* name = nullptr;
  Phase phase = Phase::born;
  if (PyArg_ParseTuple(args, "s", &name) == 0 || !phase_named(name, phase)) return nullptr;
  writer::set_phase(phase);
  return none();
}

PyObject* py_set_in_call(PyObject*, PyObject* args) {
  PyObject* texts_[3];
  unsigned long long line = 0;
  TextArgument name;
  TextArgument file;
  TextArgument function;
  if (PyArg_ParseTuple(args, "UUKU", &texts_[0], &texts_[1], &line, &texts_[2]) == 0 ||
      !name.set(texts_[0]) || !file.set(texts_[1]) || !function.set(texts_[2])) {
    return nullptr;
  }
  writer::set_in_call(name.view, file.view, line, function.view);
  return none();
}

PyObject* py_add_new_group(PyObject*, PyObject* args) {
  long long number = 0;
  PyObject* ranks = nullptr;
  PyObject* texts_[2];
  unsigned long long line = 0;
  TextArgument file;
  TextArgument function;
  if (PyArg_ParseTuple(args, "LOUKU", &number, &ranks, &texts_[0], &line, &texts_[1]) == 0 ||
      !file.set(texts_[0]) || !function.set(texts_[1])) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    std::vector<std::int64_t> members;
    if (!integers(ranks, members)) return nullptr;
    writer::add_new_group(number, members, file.view, line, function.view);
    return none();
  });
}

PyObject* py_set_mark(PyObject*, PyObject* args) {
  Py_ssize_t index = 0;
  unsigned long long count = 0;
  unsigned long long line = 0;
  PyObject* texts_[4];
  TextArgument kind;
  TextArgument text;
  TextArgument file;
  TextArgument function;
  if (PyArg_ParseTuple(args, "nUUKUKU", &index, &texts_[0], &texts_[1], &count, &texts_[2], &line,
                       &texts_[3]) == 0 ||
      !kind.set(texts_[0]) || !text.set(texts_[1]) || !file.set(texts_[2]) ||
      !function.set(texts_[3])) {
    return nullptr;
  }
  writer::set_mark(static_cast<std::size_t>(index), kind.view, text.view, count, file.view, line,
                   function.view);
  return none();
}

PyObject* py_set_exception(PyObject*, PyObject* args) {
  PyObject* texts_[4];
  unsigned long long line = 0;
  TextArgument type;
  TextArgument message;
  TextArgument file;
  TextArgument function;
  if (PyArg_ParseTuple(args, "UUUKU", &texts_[0], &texts_[1], &texts_[2], &line, &texts_[3]) == 0 ||
      !type.set(texts_[0]) || !message.set(texts_[1]) || !file.set(texts_[2]) ||
      !function.set(texts_[3])) {
    return nullptr;
  }
  writer::set_exception(type.view, message.view, file.view, line, function.view);
  return none();
}

PyObject* py_set_disarmed(PyObject*, PyObject* args) {
  PyObject* text = nullptr;
  TextArgument reason;
  if (PyArg_ParseTuple(args, "U", &text) == 0 || !reason.set(text)) return nullptr;
  writer::set_disarmed(reason.view);
  return none();
}

PyObject* py_set_torch_lacks(PyObject*, PyObject* args) {
  PyObject* text = nullptr;
  TextArgument what;
  if (PyArg_ParseTuple(args, "U", &text) == 0 || !what.set(text)) return nullptr;
  writer::set_torch_lacks(what.view);
  return none();
}

PyObject* py_count_swallowed(PyObject*, PyObject*) {
  return PyLong_FromUnsignedLongLong(writer::count_swallowed());
}

PyObject* py_beat(PyObject*, PyObject* args) {
  PyObject* text = nullptr;
  TextArgument handling;
  int pending = 0;
  int changed = 0;
  if (PyArg_ParseTuple(args, "Upp", &text, &pending, &changed) == 0 || !handling.set(text)) {
    return nullptr;
  }
  writer::beat(handling.view, pending != 0, changed != 0);
  return none();
}

PyObject* py_define_group(PyObject*, PyObject* args) {
  Py_ssize_t slot = 0;
  PyObject* ranks = nullptr;
  unsigned int index = 0;
  PyObject* texts_[3];
  TextArgument name;
  TextArgument desc;
  TextArgument backend;
  if (PyArg_ParseTuple(args, "nUUOIU", &slot, &texts_[0], &texts_[1], &ranks, &index, &texts_[2]) ==
          0 ||
      !slot_in_range(slot) || !name.set(texts_[0]) || !desc.set(texts_[1]) ||
      !backend.set(texts_[2])) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    std::vector<std::int64_t> members;
    if (!integers(ranks, members)) return nullptr;
    const auto slot_ = static_cast<std::size_t>(slot);
    const bool defined =
        writer::define_group(slot_, name.view, desc.view, members, index, backend.view);
    if (defined) groups::define(slot_, members, backend.view);
    return PyBool_FromLong(defined ? 1 : 0);
  });
}

PyObject* py_sample_number(PyObject*, PyObject* args) {
  Py_ssize_t slot = 0;
  PyObject* group = nullptr;
  long long completed = -1;
  if (PyArg_ParseTuple(args, "nO|L", &slot, &group, &completed) == 0 || !slot_in_range(slot)) {
    return nullptr;
  }
  const std::int64_t seq = groups::sample(static_cast<std::size_t>(slot), group, completed);
  return PyErr_Occurred() == nullptr ? PyLong_FromLongLong(seq) : nullptr;
}

PyObject* py_set_groups_left_out(PyObject*, PyObject* args) {
  unsigned long long count = 0;
  if (PyArg_ParseTuple(args, "K", &count) == 0) return nullptr;
  writer::set_groups_left_out(count);
  return none();
}

PyObject* py_retire_group(PyObject*, PyObject* args) {
  Py_ssize_t slot = 0;
  if (PyArg_ParseTuple(args, "n", &slot) == 0 || !slot_in_range(slot)) return nullptr;
  writer::retire_group(static_cast<std::size_t>(slot));
  groups::retire(static_cast<std::size_t>(slot));
  return none();
}

PyObject* py_wrap_methods(PyObject*, PyObject* args) {
  PyObject* process_group = nullptr;
  PyObject* work = nullptr;
  PyObject* resolve = nullptr;
  PyObject* is_foreign = nullptr;
  if (PyArg_ParseTuple(args, "O!O!O|O", &PyType_Type, &process_group, &PyType_Type, &work, &resolve,
                       &is_foreign) == 0) {
    return nullptr;
  }
  foreign::set_judge(is_foreign);
  return guarded([&] { return wrap::wrap_methods(process_group, work, resolve); });
}

// For tests, which wrap other classes each: a rank is only disarmed.
PyObject* py_unwrap_methods(PyObject*, PyObject*) {
  return wrap::unwrap_methods() ? none() : nullptr;
}

PyObject* py_last_thrown(PyObject*, PyObject*) { return thrown::last(); }

PyObject* py_disarm(PyObject*, PyObject*) {
  record::disarm();
  return none();
}

PyObject* py_use_streams(PyObject*, PyObject* args) {
  PyObject* current_stream = nullptr;
  const char* library = cuda::kLibrary;
  if (PyArg_ParseTuple(args, "O|s", &current_stream, &library) == 0) return nullptr;
  streams::use(current_stream);
  beacon::allow(library);
  return none();
}

PyObject* py_examine_beacons(PyObject*, PyObject* args) {
  const char* library = cuda::kLibrary;
  if (PyArg_ParseTuple(args, "|s", &library) == 0) return nullptr;
  return guarded([&]() -> PyObject* {
    int devices = 0;
    const std::string why = beacon::examine(library, devices);
    return Py_BuildValue("is#", devices, why.data(), static_cast<Py_ssize_t>(why.size()));
  });
}

PyObject* py_set_prefixes(PyObject*, PyObject* args) {
  PyObject* sequences[2];
  if (PyArg_ParseTuple(args, "OO", &sequences[0], &sequences[1]) == 0) return nullptr;
  return guarded([&]() -> PyObject* {
    std::vector<std::string> internal;
    std::vector<std::string> program;
    if (!texts(sequences[0], internal) || !texts(sequences[1], program)) return nullptr;
    callsite::set_prefixes(std::move(internal), std::move(program));
    return none();
  });
}

PyObject* py_record_begin(PyObject*, PyObject* args) {
  Py_ssize_t slot = 0;
  PyObject* texts_[3];
  long long seq = 0;
  int p2p = 0;
  PyObject* sizes = nullptr;
  EventData event{};
  event.device = -1;
  long long tag = 0;
  int is_async = 0;
  TextArgument op;
  TextArgument wire;
  TextArgument dtype;
  if (PyArg_ParseTuple(args, "nUULpUOiiLp", &slot, &texts_[0], &texts_[1], &seq, &p2p, &texts_[2],
                       &sizes, &event.root, &event.peer, &tag, &is_async) == 0 ||
      !slot_in_range(slot) || !op.set(texts_[0]) || !wire.set(texts_[1]) || !dtype.set(texts_[2])) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    std::vector<std::int64_t> shape;
    if (!integers(sizes, shape)) return nullptr;
    event.slot = static_cast<std::uint32_t>(slot);
    event.op = writer::intern(op.view);
    event.wire = writer::intern(wire.view);
    event.dtype = writer::intern(dtype.view);
    event.seq = static_cast<std::uint64_t>(seq);
    event.p2p = p2p != 0 ? 1 : 0;
    event.is_async = is_async != 0 ? 1 : 0;
    event.tag = tag;
    event.ndim = static_cast<std::uint16_t>(std::min(shape.size(), kMaxDims));
    std::copy_n(shape.begin(), event.ndim, event.shape);
    const std::int64_t index_ = record::add(event);
    return PyErr_Occurred() == nullptr ? PyLong_FromLongLong(index_) : nullptr;
  });
}

PyObject* py_record_end(PyObject*, PyObject* args) {
  long long index = 0;
  int failed = 0;
  if (PyArg_ParseTuple(args, "Lp", &index, &failed) == 0) return nullptr;
  record::finish(index, failed != 0);
  return none();
}

template <class F>
PyCFunction method(F* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef kFunctions[] = {
    {"read_page", method(py_read_page), METH_VARARGS | METH_KEYWORDS, nullptr},
    {"read_moments", method(py_read_moments), METH_VARARGS, nullptr},
    {"open_page", py_open_page, METH_VARARGS, nullptr},
    {"close_page", py_close_page, METH_NOARGS, nullptr},
    {"start_heartbeat", py_start_heartbeat, METH_VARARGS, nullptr},
    {"stop_heartbeat", py_stop_heartbeat, METH_NOARGS, nullptr},
    {"wait_for_request",
     reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(py_wait_for_request)),
     METH_FASTCALL, nullptr},
    {"watch_collector", py_watch_collector, METH_NOARGS, nullptr},
    {"hold_collector", py_hold_collector, METH_NOARGS, nullptr},
    {"let_collect", py_let_collect, METH_NOARGS, nullptr},
    {"ring", py_ring, METH_NOARGS, nullptr},
    {"answer_request", py_answer_request, METH_NOARGS, nullptr},
    {"use_dumps", py_use_dumps, METH_VARARGS, nullptr},
    {"add_dump", py_add_dump, METH_VARARGS, nullptr},
    {"ring_at", py_ring_at, METH_VARARGS, nullptr},
    {"set_identity", py_set_identity, METH_VARARGS, nullptr},
    {"set_phase", py_set_phase, METH_VARARGS, nullptr},
    {"set_in_call", py_set_in_call, METH_VARARGS, nullptr},
    {"add_new_group", py_add_new_group, METH_VARARGS, nullptr},
    {"set_mark", py_set_mark, METH_VARARGS, nullptr},
    {"set_exception", py_set_exception, METH_VARARGS, nullptr},
    {"set_disarmed", py_set_disarmed, METH_VARARGS, nullptr},
    {"set_torch_lacks", py_set_torch_lacks, METH_VARARGS, nullptr},
    {"count_swallowed", py_count_swallowed, METH_NOARGS, nullptr},
    {"beat", py_beat, METH_VARARGS, nullptr},
    {"define_group", py_define_group, METH_VARARGS, nullptr},
    {"sample_number", py_sample_number, METH_VARARGS, nullptr},
    {"set_groups_left_out", py_set_groups_left_out, METH_VARARGS, nullptr},
    {"retire_group", py_retire_group, METH_VARARGS, nullptr},
    {"wrap_methods", py_wrap_methods, METH_VARARGS, nullptr},
    {"unwrap_methods", py_unwrap_methods, METH_NOARGS, nullptr},
    {"last_thrown", py_last_thrown, METH_NOARGS, nullptr},
    {"disarm", py_disarm, METH_NOARGS, nullptr},
    {"use_streams", py_use_streams, METH_VARARGS, nullptr},
    {"examine_beacons", py_examine_beacons, METH_VARARGS, nullptr},
    {"set_prefixes", py_set_prefixes, METH_VARARGS, nullptr},
    {"record_begin", py_record_begin, METH_VARARGS, nullptr},
    {"record_end", py_record_end, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

// One page a process: the state is global, and the module is not for
// sub-interpreters (m_size -1).
PyModuleDef kModule = {PyModuleDef_HEAD_INIT,
                       "hangwatch._native",
                       nullptr,
                       -1,
                       kFunctions,
                       nullptr,
                       nullptr,
                       nullptr,
                       nullptr};

}  // namespace
}  // namespace hangwatch

PyMODINIT_FUNC PyInit__native() {
  using namespace hangwatch;
  // Its objects are laid out otherwise, whatever loaded us by our path.
  if (std::string_view(Py_GetVersion()).find("free-threading") != std::string_view::npos) {
    PyErr_SetString(PyExc_ImportError, "the native module needs a Python with the GIL");
    return nullptr;
  }
  if (!record::setup()) return nullptr;
  Ref module(PyModule_Create(&kModule));
  if (!module || PyModule_AddIntConstant(module.get(), "PAGE_VERSION", kVersion) != 0 ||
      PyModule_AddIntConstant(module.get(), "PAGE_BYTES", kPageBytes) != 0 ||
      PyModule_AddIntConstant(module.get(), "MAX_GROUPS", kMaxGroups) != 0) {
    return nullptr;
  }
  return module.release();
}
