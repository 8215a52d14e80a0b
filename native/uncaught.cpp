#include "uncaught.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <memory>
#include <string_view>
#include <typeinfo>

#include "dump.hpp"
#include "writer.hpp"

namespace hangwatch::uncaught {
namespace {

// At most, for a process that ends anyway. Its other threads run on meanwhile, and might end it
// otherwise: it waits only for what one of torch's threads has thrown, while the program waits.
constexpr unsigned kDumpMs = 300;
constexpr std::string_view kTypes[] = {"gloo::", "c10::DistBackendError"};
constexpr const char* kOwnHandler = "_ZN9__gnu_cxx27__verbose_terminate_handlerEv";

std::terminate_handler g_next = nullptr;  // set before the handler is
bool g_next_is_libstdcxx = false;
pid_t g_pid = 0;
std::atomic<bool> g_follows{false};
std::atomic_flag g_kept = ATOMIC_FLAG_INIT;

struct Free {
  void operator()(char* text) const noexcept { std::free(text); }
};

// True if the exception is one of torch's threads, and the program may wait for what it did.
bool keep() noexcept {
  const std::type_info* type = abi::__cxa_current_exception_type();
  if (type == nullptr) {
    writer::set_uncaught("", "");
    return false;
  }
  int status = 0;
  const std::unique_ptr<char, Free> name(
      abi::__cxa_demangle(type->name(), nullptr, nullptr, &status));
  const std::string_view shown = name != nullptr ? name.get() : type->name();
  const bool is_of_torch = std::any_of(
      std::begin(kTypes), std::end(kTypes),
      [&](std::string_view prefix) { return shown.substr(0, prefix.size()) == prefix; });
  // what() is the program's, and may do anything: only where libstdc++'s handler asks it as well.
  const bool is_asked = is_of_torch || g_next_is_libstdcxx;
  const bool is_native = *type != typeid(abi::__foreign_exception);
  if (!is_asked || !is_native || *type == typeid(abi::__forced_unwind)) {
    writer::set_uncaught(shown, "");
    return is_of_torch;
  }
  try {
    throw;
  } catch (const std::exception& error) {
    writer::set_uncaught(shown, error.what());
  } catch (...) {
    writer::set_uncaught(shown, "");
  }
  return is_of_torch;
}

// True on the stack of a signal handler that has its own: there is no room for more.
bool is_on_small_stack() noexcept {
  stack_t stack;
  return sigaltstack(nullptr, &stack) == 0 && (stack.ss_flags & SS_ONSTACK) != 0;
}

[[noreturn]] void on_terminate() noexcept {
  // A child that no handler of fork(2) knows writes into no page.
  const bool is_ours = getpid() == g_pid && writer::is_open() && !is_on_small_stack();
  if (is_ours && !g_kept.test_and_set() && keep()) dump::leave(kDumpMs);
  if (g_next != nullptr) g_next();
  std::abort();
}

}  // namespace

void follow() noexcept {
  g_pid = getpid();
  if (g_follows.exchange(true)) return;
  g_next = std::get_terminate();
  g_next_is_libstdcxx =
      g_next != nullptr && reinterpret_cast<void*>(g_next) == dlsym(RTLD_DEFAULT, kOwnHandler);
  std::set_terminate(on_terminate);
}

}  // namespace hangwatch::uncaught
