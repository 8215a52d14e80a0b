#include "uncaught.hpp"

#include <cxxabi.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <typeinfo>

#include "dump.hpp"
#include "writer.hpp"

namespace hangwatch::uncaught {
namespace {

constexpr unsigned kDumpMs = 1000;  // at most, for a process that ends anyway

std::terminate_handler g_next = nullptr;  // set before the handler is
std::atomic<bool> g_follows{false};
std::atomic_flag g_kept = ATOMIC_FLAG_INIT;

struct Free {
  void operator()(char* text) const noexcept { std::free(text); }
};

// As libstdc++'s own handler does it (vterminate.cc).
void keep() noexcept {
  const std::type_info* type = abi::__cxa_current_exception_type();
  if (type == nullptr) return writer::set_uncaught("", "");
  int status = 0;
  const std::unique_ptr<char, Free> name(
      abi::__cxa_demangle(type->name(), nullptr, nullptr, &status));
  const char* const shown = name != nullptr ? name.get() : type->name();
  const bool is_native = *type != typeid(abi::__foreign_exception);
  if (!is_native || *type == typeid(abi::__forced_unwind)) return writer::set_uncaught(shown, "");
  try {
    throw;
  } catch (const std::exception& error) {
    writer::set_uncaught(shown, error.what());
  } catch (...) {
    writer::set_uncaught(shown, "");
  }
}

[[noreturn]] void on_terminate() noexcept {
  if (writer::is_open() && !g_kept.test_and_set()) {
    keep();
    dump::leave(kDumpMs);
  }
  if (g_next != nullptr) g_next();
  std::abort();
}

}  // namespace

void follow() noexcept {
  if (g_follows.exchange(true)) return;
  g_next = std::get_terminate();
  std::set_terminate(on_terminate);
}

}  // namespace hangwatch::uncaught
