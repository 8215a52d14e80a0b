// A fake of libtorch_cpu.so and libtorch_cuda.so, as far as dumps of the Flight Recorder go.
// Built by the tests, with FAKE_RECORDER as the function's name; with FAKE_BACKEND it takes the
// name of a backend too, as the general one does since torch 2.15, and has a recorder for each.

#include <atomic>
#include <stdexcept>
#include <string>

namespace {
std::string g_dump;
std::string g_status;  // without entries
bool g_throws = false;
std::atomic<bool> g_thrown{false};
}  // namespace

namespace c10d {
#ifdef FAKE_BACKEND
std::string FAKE_RECORDER(bool include_collectives, bool only_active, const std::string& backend);
std::string FAKE_RECORDER(bool include_collectives, bool only_active, const std::string& backend) {
  if (backend != FAKE_BACKEND) return "{\"entries\":[\"" + backend + "\"]}";
#else
std::string FAKE_RECORDER(bool include_collectives, bool only_active);
std::string FAKE_RECORDER(bool include_collectives, bool only_active) {
#endif
  if (!include_collectives && !g_status.empty()) return g_status;
  if (g_throws || !include_collectives || only_active) {
    g_thrown.store(true);
    throw std::runtime_error("fake torch");
  }
  return g_dump;
}
}  // namespace c10d

extern "C" void fake_status(const char* status) { g_status = status; }

extern "C" bool fake_has_thrown() { return g_thrown.load(); }

extern "C" void fake_dump(const char* dump) {
  g_throws = dump == nullptr;
  g_dump = dump == nullptr ? "" : dump;
}
