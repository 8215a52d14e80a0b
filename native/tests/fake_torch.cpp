// A fake of libtorch_cpu.so and libtorch_cuda.so, as far as dumps of the Flight Recorder go.
// Built by the tests, with FAKE_RECORDER as the function's name.

#include <stdexcept>
#include <string>

namespace {
std::string g_dump;
bool g_throws = false;
}  // namespace

namespace c10d {
std::string FAKE_RECORDER(bool include_collectives, bool only_active);
std::string FAKE_RECORDER(bool include_collectives, bool only_active) {
  if (g_throws || !include_collectives || only_active) throw std::runtime_error("fake torch");
  return g_dump;
}
}  // namespace c10d

extern "C" void fake_dump(const char* dump) {
  g_throws = dump == nullptr;
  g_dump = dump == nullptr ? "" : dump;
}
