#include "cuda.hpp"

#include <dlfcn.h>

namespace hangwatch::cuda {

std::string load(const char* library, bool fresh, Driver& driver) {
  void* handle = dlopen(library, RTLD_NOW | (fresh ? 0 : RTLD_NOLOAD));
  if (handle == nullptr) {
    const char* why = fresh ? dlerror() : nullptr;
    return why != nullptr ? why : std::string(library) + " is not loaded in this process";
  }
#define HANGWATCH_CUDA_LOAD(name, parameters)                                 \
  driver.name = reinterpret_cast<Result(*) parameters>(dlsym(handle, #name)); \
  if (driver.name == nullptr) return std::string(library) + " has no " #name;
  HANGWATCH_CUDA_FUNCTIONS(HANGWATCH_CUDA_LOAD)
#undef HANGWATCH_CUDA_LOAD
  return {};
}

int exchange_capture_mode(const char* library, int mode) noexcept {
  void* handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return -1;
  using Exchange = Result (*)(int*);
  const auto exchange =
      reinterpret_cast<Exchange>(dlsym(handle, "cuThreadExchangeStreamCaptureMode"));
  const bool done = exchange != nullptr && exchange(&mode) == kSuccess;
  dlclose(handle);  // the process keeps it
  return done ? mode : -1;
}

std::string error_text(const Driver& driver, const char* function, Result error) {
  const char* name = nullptr;
  if (driver.cuGetErrorName(error, &name) != kSuccess || name == nullptr) {
    return "error " + std::to_string(error) + " in " + function;
  }
  return std::string(name) + " in " + function;
}

InContext::InContext(const Driver& driver, Context context) : driver_(driver) {
  Context current = nullptr;
  result_ = driver_.cuCtxGetCurrent(&current);
  if (result_ != kSuccess || current == context) return;
  result_ = driver_.cuCtxPushCurrent_v2(context);
  pushed_ = result_ == kSuccess;
}

InContext::~InContext() {
  Context ours = nullptr;
  if (pushed_) driver_.cuCtxPopCurrent_v2(&ours);
}

}  // namespace hangwatch::cuda
