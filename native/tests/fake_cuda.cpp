// A fake of the driver's library for machines without a GPU: libcuda.so.1 as far as
// beacons use it, with streams that run when they are told to. Built by the tests.
//
// Two devices. What a driver would refuse it refuses, or ends the process: a write that
// is not into registered memory, or into a stream of another context than the current one.

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

constexpr int kDevices = 2;
constexpr unsigned long long kDeviceSide = 0x5000'0000'0000;  // a device's addresses are its own
constexpr int kInvalidValue = 1;
constexpr int kInvalidContext = 201;
constexpr int kNotInitialized = 3;

struct Write {
  unsigned long long address;
  std::uint64_t value;
};

struct Stream {
  int device;
  int capturing;
  std::deque<Write> queue;
};

struct Context {
  bool active;
  int retained;
};

struct Machine {
  std::mutex mutex;
  std::condition_variable changed;
  bool initialized = true;
  Context contexts[kDevices] = {};
  std::map<int, int> attributes[kDevices];
  Stream defaults[kDevices] = {{0, 0, {}}, {1, 0, {}}};
  std::vector<Stream*> streams;
  std::map<std::string, int> failures;
  char* memory = nullptr;
  std::size_t bytes = 0;
  bool capture_elsewhere = false;
  bool full = false;  // whoever enqueues a write waits
  int waiting = 0;
  long long writes = 0;
  long long calls = 0;
};
Machine* g_machine = new Machine;

thread_local std::vector<Context*> t_contexts;
thread_local int t_capture_mode = 0;

[[noreturn]] void wrong(const char* what) {
  std::fprintf(stderr, "fake libcuda: %s\n", what);
  std::abort();
}

// The error that a call is to fail with, 0 for none.
int failure(const char* function) {
  ++g_machine->calls;
  if (g_machine->failures.empty()) return 0;
  const auto found = g_machine->failures.find(function);
  return found == g_machine->failures.end() ? 0 : found->second;
}

Context* current() { return t_contexts.empty() ? nullptr : t_contexts.back(); }

Stream* stream_of(void* handle) {
  if (handle != nullptr) return static_cast<Stream*>(handle);
  if (current() == nullptr) return nullptr;
  return &g_machine->defaults[current() - g_machine->contexts];
}

}  // namespace

#define BEGIN(function)                                   \
  std::unique_lock<std::mutex> lock(g_machine->mutex);    \
  if (const int error = failure(#function)) return error; \
  if (!g_machine->initialized) return kNotInitialized

extern "C" {

// --- The driver -------------------------------------------------------------------

int cuInit(unsigned) {
  const std::lock_guard<std::mutex> lock(g_machine->mutex);
  if (const int error = failure("cuInit")) return error;
  g_machine->initialized = true;
  return 0;
}

int cuGetErrorName(int error, const char** name) {
  *name = error == 700   ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : error == 801 ? "CUDA_ERROR_NOT_SUPPORTED"
                         : nullptr;
  return *name == nullptr ? kInvalidValue : 0;
}

int cuDeviceGetCount(int* count) {
  BEGIN(cuDeviceGetCount);
  *count = kDevices;
  return 0;
}

int cuDeviceGet(int* device, int ordinal) {
  BEGIN(cuDeviceGet);
  if (ordinal < 0 || ordinal >= kDevices) return 101;
  *device = ordinal;
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  BEGIN(cuDeviceGetAttribute);
  const auto found = g_machine->attributes[device].find(attribute);
  *value = found == g_machine->attributes[device].end() ? 1 : found->second;
  return 0;
}

int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  BEGIN(cuDevicePrimaryCtxGetState);
  *flags = 0;
  *active = g_machine->contexts[device].active ? 1 : 0;
  return 0;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  BEGIN(cuDevicePrimaryCtxRetain);
  if (!g_machine->contexts[device].active) wrong("a context is made in a process that has none");
  ++g_machine->contexts[device].retained;
  *context = &g_machine->contexts[device];
  return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  BEGIN(cuDevicePrimaryCtxRelease_v2);
  --g_machine->contexts[device].retained;
  return 0;
}

int cuCtxGetCurrent(void** context) {
  BEGIN(cuCtxGetCurrent);
  *context = current();
  return 0;
}

int cuCtxPushCurrent_v2(void* context) {
  BEGIN(cuCtxPushCurrent_v2);
  t_contexts.push_back(static_cast<Context*>(context));
  return 0;
}

int cuCtxPopCurrent_v2(void** context) {
  BEGIN(cuCtxPopCurrent_v2);
  if (t_contexts.empty()) return kInvalidContext;
  *context = t_contexts.back();
  t_contexts.pop_back();
  return 0;
}

int cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned flags) {
  BEGIN(cuMemHostRegister_v2);
  if (current() == nullptr) return kInvalidContext;
  if (reinterpret_cast<std::uintptr_t>(memory) % 4096 != 0 || bytes % 4096 != 0 || flags != 3) {
    return kInvalidValue;
  }
  if (g_machine->memory != nullptr) return 712;
  if (g_machine->capture_elsewhere && t_capture_mode != 2) wrong("a capture is invalidated");
  g_machine->memory = static_cast<char*>(memory);
  g_machine->bytes = bytes;
  return 0;
}

int cuMemHostUnregister(void* memory) {
  BEGIN(cuMemHostUnregister);
  if (memory != g_machine->memory) return 713;
  for (Stream& stream : g_machine->defaults) stream.queue.clear();
  for (Stream* stream : g_machine->streams) stream->queue.clear();
  g_machine->memory = nullptr;
  return 0;
}

int cuMemHostGetDevicePointer_v2(unsigned long long* pointer, void* memory, unsigned) {
  BEGIN(cuMemHostGetDevicePointer_v2);
  if (memory != g_machine->memory || memory == nullptr) return kInvalidValue;
  *pointer = reinterpret_cast<unsigned long long>(memory) + kDeviceSide;
  return 0;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  BEGIN(cuThreadExchangeStreamCaptureMode);
  const int before = t_capture_mode;
  t_capture_mode = *mode;
  *mode = before;
  return 0;
}

int cuStreamIsCapturing(void* handle, int* status) {
  BEGIN(cuStreamIsCapturing);
  const Stream* stream = stream_of(handle);
  if (stream == nullptr) return kInvalidContext;
  if (handle == nullptr && g_machine->capture_elsewhere) return 906;
  *status = stream->capturing;
  return 0;
}

int cuStreamWriteValue64_v2(void* handle, unsigned long long address, std::uint64_t value,
                            unsigned flags) {
  BEGIN(cuStreamWriteValue64_v2);
  Stream* stream = stream_of(handle);
  if (stream == nullptr || current() != &g_machine->contexts[stream->device])
    return kInvalidContext;
  if (stream->capturing != 0) wrong("a write is captured");
  const auto start = reinterpret_cast<unsigned long long>(g_machine->memory) + kDeviceSide;
  if (flags != 0 || g_machine->memory == nullptr || address % 8 != 0 || address < start ||
      address + 8 > start + g_machine->bytes) {
    wrong("a write goes elsewhere");
  }
  ++g_machine->waiting;
  g_machine->changed.notify_all();
  g_machine->changed.wait(lock, [] { return !g_machine->full; });
  --g_machine->waiting;
  ++g_machine->writes;
  stream->queue.push_back({address, value});
  return 0;
}

// --- What tests make of it ----------------------------------------------------------

void fake_reset() {
  {
    const std::lock_guard<std::mutex> lock(g_machine->mutex);
    for (Stream* stream : g_machine->streams) delete stream;
  }
  delete g_machine;
  g_machine = new Machine;
  t_contexts.clear();
  t_capture_mode = 0;
}

void fake_context(int device, int active) { g_machine->contexts[device].active = active != 0; }

// Makes the context of a device current in this thread, as torch does; -1 for none.
void fake_set_device(int device) {
  t_contexts.clear();
  if (device >= 0) t_contexts.push_back(&g_machine->contexts[device]);
}

int fake_current_device() {
  return current() == nullptr ? -1 : static_cast<int>(current() - g_machine->contexts);
}

void fake_initialized(int initialized) { g_machine->initialized = initialized != 0; }
void fake_attribute(int device, int attribute, int value) {
  g_machine->attributes[device][attribute] = value;
}

void* fake_stream(int device) {
  const std::lock_guard<std::mutex> lock(g_machine->mutex);
  g_machine->streams.push_back(new Stream{device, 0, {}});
  return g_machine->streams.back();
}

void fake_capturing(void* stream, int status) { static_cast<Stream*>(stream)->capturing = status; }
void fake_capture_elsewhere(int on) { g_machine->capture_elsewhere = on != 0; }

void fake_fail(const char* function, int error) {
  const std::lock_guard<std::mutex> lock(g_machine->mutex);
  g_machine->failures[function] = error;
}

// Lets a stream do so many of its writes, all for -1; nullptr is device 0's default one.
int fake_run(void* handle, int count) {
  const std::lock_guard<std::mutex> lock(g_machine->mutex);
  Stream* stream = handle == nullptr ? &g_machine->defaults[0] : static_cast<Stream*>(handle);
  int done = 0;
  while (!stream->queue.empty() && done != count) {
    const Write write = stream->queue.front();
    stream->queue.pop_front();
    auto* word = reinterpret_cast<std::uint64_t*>(write.address - kDeviceSide);
    __atomic_store_n(word, write.value, __ATOMIC_RELEASE);
    ++done;
  }
  return done;
}

int fake_pending(void* handle) {
  const std::lock_guard<std::mutex> lock(g_machine->mutex);
  Stream* stream = handle == nullptr ? &g_machine->defaults[0] : static_cast<Stream*>(handle);
  return static_cast<int>(stream->queue.size());
}

void fake_block(int on) {
  const std::lock_guard<std::mutex> lock(g_machine->mutex);
  g_machine->full = on != 0;
  g_machine->changed.notify_all();
}

void fake_wait_until_blocked() {
  std::unique_lock<std::mutex> lock(g_machine->mutex);
  g_machine->changed.wait(lock, [] { return g_machine->full && g_machine->waiting > 0; });
}

int fake_retained(int device) { return g_machine->contexts[device].retained; }
int fake_registered() { return g_machine->memory != nullptr ? 1 : 0; }
int fake_capture_mode() { return t_capture_mode; }
int fake_depth() { return static_cast<int>(t_contexts.size()); }
long long fake_writes() { return g_machine->writes; }
long long fake_calls() { return g_machine->calls; }
}
