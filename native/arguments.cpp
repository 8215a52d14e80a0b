#include "arguments.hpp"

#include "values.hpp"

namespace hangwatch {
namespace {

bool int_item(PyObject* dict, const char* key, std::int64_t& value) {
  PyObject* item = PyDict_GetItemString(dict, key);
  if (item == nullptr) return true;
  value = PyLong_AsLongLong(item);
  return value != -1 || PyErr_Occurred() == nullptr;
}

bool int_item(PyObject* dict, const char* key, std::int32_t& value) {
  std::int64_t wide = value;
  if (!int_item(dict, key, wide)) return false;
  value = static_cast<std::int32_t>(wide);
  return true;
}

bool text_item(PyObject* dict, const char* key, std::string& value) {
  PyObject* item = PyDict_GetItemString(dict, key);
  if (item == nullptr) return true;
  Py_ssize_t size = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(item, &size);
  if (utf8 != nullptr) value.assign(utf8, static_cast<std::size_t>(size));
  return utf8 != nullptr;
}

}  // namespace

bool TextArgument::set(PyObject* text) {
  bytes = Ref(PyUnicode_AsEncodedString(text, "utf-8", "replace"));
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (!bytes || PyBytes_AsStringAndSize(bytes.get(), &data, &size) != 0) return false;
  view = std::string_view(data, static_cast<std::size_t>(size));
  return true;
}

bool phase_named(const char* name, Phase& phase) {
  for (std::uint32_t i = 0; i < kPhases; ++i) {
    phase = static_cast<Phase>(i);
    if (std::string_view(kPhaseNames[i]) == name) return true;
  }
  PyErr_Format(PyExc_ValueError, "no such phase: %s", name);
  return false;
}

bool slot_in_range(Py_ssize_t slot) {
  if (slot >= 0 && slot < static_cast<Py_ssize_t>(kMaxGroups)) return true;
  PyErr_Format(PyExc_ValueError, "slot %zd: use 0 to %zd", slot,
               static_cast<Py_ssize_t>(kMaxGroups) - 1);
  return false;
}

bool integers(PyObject* sequence, std::vector<std::int64_t>& values) {
  const Py_ssize_t count = PySequence_Size(sequence);
  for (Py_ssize_t i = 0; i < count; ++i) {
    const Ref item(PySequence_GetItem(sequence, i));
    if (!item) return false;
    values.push_back(PyLong_AsLongLong(item.get()));
    if (PyErr_Occurred() != nullptr) return false;
  }
  return count >= 0;
}

bool texts(PyObject* sequence, std::vector<std::string>& values) {
  const Py_ssize_t count = PySequence_Size(sequence);
  for (Py_ssize_t i = 0; i < count; ++i) {
    const Ref item(PySequence_GetItem(sequence, i));
    Py_ssize_t size = 0;
    const char* utf8 = item ? PyUnicode_AsUTF8AndSize(item.get(), &size) : nullptr;
    if (utf8 == nullptr) return false;
    values.emplace_back(utf8, static_cast<std::size_t>(size));
  }
  return count >= 0;
}

bool identity_from(PyObject* dict, writer::Identity& identity) {
  std::int64_t start_ticks = 0;
  if (!int_item(dict, "pid", identity.pid) || !int_item(dict, "start_ticks", start_ticks) ||
      !int_item(dict, "rank", identity.rank) ||
      !int_item(dict, "world_size", identity.world_size) ||
      !int_item(dict, "local_rank", identity.local_rank) ||
      !int_item(dict, "local_world_size", identity.local_world_size) ||
      !int_item(dict, "restart", identity.restart) ||
      !int_item(dict, "store_port", identity.store_port) ||
      !text_item(dict, "host", identity.host) ||
      !text_item(dict, "store_host", identity.store_host) ||
      !text_item(dict, "run_id", identity.run_id) ||
      !text_item(dict, "program", identity.program)) {
    return false;
  }
  identity.start_ticks = static_cast<std::uint64_t>(start_ticks);
  return true;
}

}  // namespace hangwatch
