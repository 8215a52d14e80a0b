// The few functions of the CUDA driver API that beacons need, without its headers.
//
// Types and numbers as in cuda.h of CUDA 13 (docs.nvidia.com/cuda/cuda-driver-api); they
// are part of the driver's ABI. The symbols are those that cuda.h's macros stand for:
// cuStreamWriteValue64_v2 came with CUDA 11.7, and unlike the first version it works
// without a setting of the driver's module.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hangwatch::cuda {

using Result = int;                  // CUresult
using Device = int;                  // CUdevice
using Context = void*;               // CUcontext
using Stream = void*;                // CUstream; nullptr is the legacy default stream
using Pointer = unsigned long long;  // CUdeviceptr

// The driver's library by the name that its users load it by.
constexpr const char* kLibrary = "libcuda.so.1";

constexpr Result kSuccess = 0;
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED to CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD: a capture is
// under way that forbids the call.
constexpr Result kFirstCaptureError = 900;
constexpr Result kLastCaptureError = 908;
constexpr int kHostRegisterSupported = 99;     // CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED
constexpr int kCanUse64BitStreamMemOps = 122;  // CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
constexpr unsigned kRegisterPortable = 1;      // CU_MEMHOSTREGISTER_PORTABLE
constexpr unsigned kRegisterDeviceMap = 2;     // CU_MEMHOSTREGISTER_DEVICEMAP
constexpr int kCaptureStatusNone = 0;          // CU_STREAM_CAPTURE_STATUS_NONE
constexpr int kCaptureModeRelaxed = 2;         // CU_STREAM_CAPTURE_MODE_RELAXED

#define HANGWATCH_CUDA_FUNCTIONS(X)                                                  \
  X(cuInit, (unsigned flags))                                                        \
  X(cuGetErrorName, (Result error, const char** name))                               \
  X(cuDeviceGetCount, (int* count))                                                  \
  X(cuDeviceGet, (Device * device, int ordinal))                                     \
  X(cuDeviceGetAttribute, (int* value, int attribute, Device device))                \
  X(cuDevicePrimaryCtxGetState, (Device device, unsigned* flags, int* active))       \
  X(cuDevicePrimaryCtxRetain, (Context * context, Device device))                    \
  X(cuDevicePrimaryCtxRelease_v2, (Device device))                                   \
  X(cuCtxGetCurrent, (Context * context))                                            \
  X(cuCtxPushCurrent_v2, (Context context))                                          \
  X(cuCtxPopCurrent_v2, (Context * context))                                         \
  X(cuMemHostRegister_v2, (void* memory, std::size_t bytes, unsigned flags))         \
  X(cuMemHostUnregister, (void* memory))                                             \
  X(cuMemHostGetDevicePointer_v2, (Pointer * pointer, void* memory, unsigned flags)) \
  X(cuThreadExchangeStreamCaptureMode, (int* mode))                                  \
  X(cuStreamIsCapturing, (Stream stream, int* status))                               \
  X(cuStreamWriteValue64_v2, (Stream stream, Pointer address, std::uint64_t value, unsigned flags))

// Of the driver; none is called before load() has succeeded.
struct Driver {
#define HANGWATCH_CUDA_MEMBER(name, parameters) Result(*name) parameters;
  HANGWATCH_CUDA_FUNCTIONS(HANGWATCH_CUDA_MEMBER)
#undef HANGWATCH_CUDA_MEMBER
};

// Why the library cannot be used, or an empty string. `fresh`: load it where this
// process has not done so itself.
std::string load(const char* library, bool fresh, Driver& driver);

// Sets how careful the calling thread is of captures (CU_STREAM_CAPTURE_MODE_...), and returns
// how careful it was; -1 where the process has not loaded and initialised the driver.
int exchange_capture_mode(const char* library, int mode) noexcept;

// "CUDA_ERROR_INVALID_VALUE in cuStreamWriteValue64".
std::string error_text(const Driver& driver, const char* function, Result error);

// Another context for the calls of this thread, until the end of the block.
class InContext {
 public:
  InContext(const Driver& driver, Context context);
  ~InContext();
  Result result() const { return result_; }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

 private:
  const Driver& driver_;
  Result result_ = kSuccess;
  bool pushed_ = false;
};

}  // namespace hangwatch::cuda
