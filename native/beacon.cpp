#include "beacon.hpp"

#include <algorithm>
#include <iterator>

#include "mapping.hpp"

namespace hangwatch::beacon {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr int kMaxDevices = 64;
constexpr std::size_t kMemoryPage = 4096;

enum class State { off, allowed, on };
std::atomic<State> g_state{State::off};
std::string g_library;
cuda::Driver g_driver;
std::atomic_flag g_opening = ATOMIC_FLAG_INIT;

struct Device {
  std::atomic<bool> open;
  cuda::Device device;
  cuda::Context context;  // its primary one
  cuda::Pointer beacons;  // Page::beacons as the device sees it
};
Device g_devices[kMaxDevices];
void* g_registered = nullptr;

// The memory pages that hold the beacons: only whole ones can be registered, and the
// whole file is of whole ones.
char* first_memory_page(Page* page) {
  const auto start = offsetof(Page, beacons) / kMemoryPage * kMemoryPage;
  return reinterpret_cast<char*>(page) + start;
}

bool fail(const char* function, cuda::Result error) {
  // A capture that is under way elsewhere forbids it now, and not for ever.
  if (error < cuda::kFirstCaptureError || error > cuda::kLastCaptureError) {
    turn_off(cuda::error_text(g_driver, function, error).c_str());
  }
  return false;
}

// Registering is "potentially unsafe" while another thread captures in the global mode, and
// would invalidate the capture, but for a thread in the relaxed mode.
class Relaxed {
 public:
  Relaxed() { g_driver.cuThreadExchangeStreamCaptureMode(&mode_); }
  ~Relaxed() { g_driver.cuThreadExchangeStreamCaptureMode(&mode_); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  int mode_ = cuda::kCaptureModeRelaxed;
};

bool any_open() {
  return std::any_of(std::begin(g_devices), std::end(g_devices),
                     [](const Device& device) { return device.open.load(kRelaxed); });
}

// With a context current.
void unregister() {
  if (g_registered != nullptr) g_driver.cuMemHostUnregister(g_registered);
  g_registered = nullptr;
}

bool map_page(Page* page, Device& device) {
  const cuda::InContext inside(g_driver, device.context);
  if (inside.result() != cuda::kSuccess) return fail("cuCtxPushCurrent", inside.result());
  char* first = first_memory_page(page);
  if (g_registered == nullptr) {
    const std::size_t bytes = reinterpret_cast<char*>(page) + kPageBytes - first;
    // Portable: once for the contexts of all devices.
    const cuda::Result error = g_driver.cuMemHostRegister_v2(
        first, bytes, cuda::kRegisterPortable | cuda::kRegisterDeviceMap);
    if (error != cuda::kSuccess) return fail("cuMemHostRegister", error);
    g_registered = first;
  }
  cuda::Pointer pointer = 0;
  const cuda::Result error = g_driver.cuMemHostGetDevicePointer_v2(&pointer, first, 0);
  if (error != cuda::kSuccess) {
    if (!any_open()) unregister();
    return fail("cuMemHostGetDevicePointer", error);
  }
  const char* beacons = reinterpret_cast<char*>(page) + offsetof(Page, beacons);
  device.beacons = pointer + static_cast<cuda::Pointer>(beacons - first);
  return true;
}

// False where the device cannot be used, or not yet.
bool open_device(Page* page, int ordinal) {
  if (g_state.load(std::memory_order_acquire) == State::allowed) {
    const std::string why = cuda::load(g_library.c_str(), false, g_driver);
    if (!why.empty()) {
      turn_off(why.c_str());
      return false;
    }
    g_state.store(State::on, std::memory_order_release);
  }
  const Relaxed relaxed;
  Device& device = g_devices[ordinal];
  if (const cuda::Result error = g_driver.cuDeviceGet(&device.device, ordinal)) {
    return fail("cuDeviceGet", error);
  }
  for (const int attribute : {cuda::kCanUse64BitStreamMemOps, cuda::kHostRegisterSupported}) {
    int value = 0;
    if (const cuda::Result error =
            g_driver.cuDeviceGetAttribute(&value, attribute, device.device)) {
      return fail("cuDeviceGetAttribute", error);
    }
    if (value == 0) {
      turn_off(attribute == cuda::kHostRegisterSupported
                   ? "the device cannot use memory of the host"
                   : "the device has no 64-bit memory operations of streams");
      return false;
    }
  }
  unsigned flags = 0;
  int active = 0;
  if (const cuda::Result error =
          g_driver.cuDevicePrimaryCtxGetState(device.device, &flags, &active)) {
    return fail("cuDevicePrimaryCtxGetState", error);
  }
  if (active == 0) return false;  // a context is for the job to make
  // Kept for as long as the page: torch, whose context it is, never releases it either.
  if (const cuda::Result error =
          g_driver.cuDevicePrimaryCtxRetain(&device.context, device.device)) {
    return fail("cuDevicePrimaryCtxRetain", error);
  }
  if (!map_page(page, device)) {
    g_driver.cuDevicePrimaryCtxRelease_v2(device.device);
    return false;
  }
  device.open.store(true, std::memory_order_release);
  writer::set_beacons("");
  return true;
}

bool is_open(Page* page, int ordinal) {
  if (ordinal < 0 || ordinal >= kMaxDevices) return false;
  if (g_devices[ordinal].open.load(std::memory_order_acquire)) return true;
  // Another thread is at it: this one's beacon is left out.
  if (g_opening.test_and_set(std::memory_order_acquire)) return false;
  bool open = g_devices[ordinal].open.load(kRelaxed);
  if (!open) try {
      open = open_device(page, ordinal);
    } catch (...) {
      turn_off("no memory");
    }
  g_opening.clear(std::memory_order_release);
  return open;
}

}  // namespace

void allow(const char* library) noexcept try {
  if (allowed()) return;
  g_library = library;
  writer::set_beacons(kNoBeaconsYet);
  g_state.store(State::allowed, std::memory_order_release);
} catch (...) {
  turn_off("no memory");
}

bool allowed() noexcept { return g_state.load(kRelaxed) != State::off; }

void turn_off(const char* reason) noexcept {
  if (g_state.exchange(State::off) != State::off) writer::set_beacons(reason);
}

bool write(BeaconKind kind, std::size_t slot, std::uint64_t seq, int ordinal,
           cuda::Stream stream) noexcept {
  Page* page = writer::page();
  if (page == nullptr || !allowed() || !writer::has_room(slot) || seq == 0) {
    return false;
  }
  if (!is_open(page, ordinal)) return false;
  const Device& device = g_devices[ordinal];
  const cuda::InContext inside(g_driver, device.context);
  if (inside.result() != cuda::kSuccess) return fail("cuCtxPushCurrent", inside.result());
  int capturing = 0;
  if (const cuda::Result error = g_driver.cuStreamIsCapturing(stream, &capturing)) {
    return fail("cuStreamIsCapturing", error);
  }
  if (capturing != cuda::kCaptureStatusNone) return false;
  Beacon& beacon = page->beacons[slot].of[static_cast<std::size_t>(kind)][seq % kBeacons];
  const std::uint64_t asked = beacon.asked.load(kRelaxed);
  if (seq < asked) return false;
  if (beacon.seen.load(std::memory_order_acquire) >= asked) beacon.first.store(seq, kRelaxed);
  beacon.asked.store(seq, std::memory_order_release);
  const auto offset =
      reinterpret_cast<char*>(&beacon.seen) - reinterpret_cast<char*>(page->beacons);
  const cuda::Result error = g_driver.cuStreamWriteValue64_v2(
      stream, device.beacons + static_cast<cuda::Pointer>(offset), seq, 0);
  if (error == cuda::kSuccess) return true;
  // Asked for and never enqueued, it would look like a stream that does not come to it.
  beacon.asked.store(asked, std::memory_order_release);
  return fail("cuStreamWriteValue64", error);
}

void close() noexcept {
  g_state.store(State::off);
  for (Device& device : g_devices) {
    if (!device.open.exchange(false)) continue;
    {
      const cuda::InContext inside(g_driver, device.context);
      unregister();
    }
    g_driver.cuDevicePrimaryCtxRelease_v2(device.device);
  }
}

void disown() noexcept {
  g_state.store(State::off, kRelaxed);
  g_registered = nullptr;
  g_opening.clear(kRelaxed);
  for (Device& device : g_devices) device.open.store(false, kRelaxed);
}

std::string examine(const char* library, int& devices) {
  cuda::Driver driver{};
  devices = 0;
  std::string why = cuda::load(library, true, driver);
  if (!why.empty()) return why;
  int count = 0;
  if (const cuda::Result error = driver.cuInit(0)) return cuda::error_text(driver, "cuInit", error);
  if (const cuda::Result error = driver.cuDeviceGetCount(&count)) {
    return cuda::error_text(driver, "cuDeviceGetCount", error);
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cuda::Device device = 0;
    int stream_memory = 0;
    int registers = 0;
    const bool good = driver.cuDeviceGet(&device, ordinal) == cuda::kSuccess &&
                      driver.cuDeviceGetAttribute(&stream_memory, cuda::kCanUse64BitStreamMemOps,
                                                  device) == cuda::kSuccess &&
                      driver.cuDeviceGetAttribute(&registers, cuda::kHostRegisterSupported,
                                                  device) == cuda::kSuccess;
    if (good && stream_memory != 0 && registers != 0) ++devices;
  }
  if (devices > 0) return {};
  return count == 0 ? "there is no device" : "no device has 64-bit memory operations of streams";
}

}  // namespace hangwatch::beacon
