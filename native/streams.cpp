#include "streams.hpp"

#include "beacon.hpp"
#include "foreign.hpp"

namespace hangwatch::streams {
namespace {

PyObject* g_current_stream = nullptr;

}  // namespace

void use(PyObject* current_stream) {
  Py_INCREF(current_stream);
  PyObject* before = g_current_stream;
  g_current_stream = current_stream;
  Py_XDECREF(before);
}

bool wanted() noexcept { return beacon::allowed(); }

bool mark(BeaconKind kind, std::int64_t slot, std::uint64_t seq, std::int32_t device) noexcept {
  if (!beacon::allowed() || g_current_stream == nullptr || device < 0 || slot < 0) return false;
  const Ref ordinal(PyLong_FromLong(device));
  PyObject* args[2] = {nullptr, ordinal.get()};
  const Ref handle(
      ordinal ? PyObject_Vectorcall(g_current_stream, args + 1, 1 | kArgumentsOffset, nullptr)
              : nullptr);
  const std::uint64_t stream = handle ? PyLong_AsUnsignedLongLong(handle.get()) : 0;
  if (PyErr_Occurred() != nullptr) {
    if (foreign::is_set()) return false;
    PyErr_Clear();
    beacon::turn_off("torch does not tell its current stream");
    return false;
  }
  // A stream whose queue is full makes us wait, perhaps for ever: not with the GIL.
  PyThreadState* state = PyEval_SaveThread();
  const bool written =
      beacon::write(kind, static_cast<std::size_t>(slot), seq, device,
                    reinterpret_cast<cuda::Stream>(static_cast<std::uintptr_t>(stream)));
  PyEval_RestoreThread(state);
  return written;
}

}  // namespace hangwatch::streams
