// A fake libnvidia-ml.so.1 for machines without a GPU. What its devices say stands in the file
// that FAKE_NVML names, which is read anew at each call, so that a test can change it meanwhile.
//
// Lines "KEY = VALUE". A value may be "error N" (the call returns N), "block" (it never returns)
// or what the figure is; a figure without a line is not supported. Keys of GPU 0 begin with "0.",
// of its first MIG device with "0.0.". "0.xids" is a list that grows: an event set is told of
// what was added since it was registered. See fake_nvml.py, which writes the file.

#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

enum Return : int {
  kSuccess = 0,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNotFound = 6,
  kInsufficientSize = 7,
  kTimeout = 10,
};

constexpr int kMaxGpus = 16;
constexpr int kMaxMig = 7;
constexpr unsigned kNoInstance = 0xFFFFFFFF;
constexpr uint64_t kXidEvent = 8;

struct Device {
  int gpu;
  int part;  // of a MIG device, -1 for the GPU itself
};

// What a handle points to: the GPU itself, then its MIG devices.
std::array<std::array<Device, kMaxMig + 1>, kMaxGpus> devices = [] {
  std::array<std::array<Device, kMaxMig + 1>, kMaxGpus> made{};
  for (int gpu = 0; gpu < kMaxGpus; ++gpu) {
    for (int part = 0; part <= kMaxMig; ++part) {
      made[gpu][part] = {gpu, part - 1};
    }
  }
  return made;
}();

struct EventSet {
  const Device* device;
  size_t told;
};

std::map<std::string, std::string> settings() {
  std::map<std::string, std::string> found;
  const char* path = std::getenv("FAKE_NVML");
  std::ifstream file(path != nullptr ? path : "");
  for (std::string line; std::getline(file, line);) {
    const auto at = line.find(" = ");
    if (at != std::string::npos) {
      found[line.substr(0, at)] = line.substr(at + 3);
    }
  }
  return found;
}

// The value of a key; how the call ends if it ends here.
int look_up(const std::string& key, std::string& value) {
  const auto all = settings();
  const auto found = all.find(key);
  if (found == all.end()) {
    return kNotSupported;
  }
  value = found->second;
  while (value == "block") {
    pause();
  }
  if (value.rfind("error ", 0) == 0) {
    return std::stoi(value.substr(6));
  }
  return kSuccess;
}

std::string key_of(const Device* device, const char* figure) {
  std::string key = std::to_string(device->gpu) + ".";
  if (device->part >= 0) {
    key += std::to_string(device->part) + ".";
  }
  return key + figure;
}

// A figure of a device. The line "0.all" stands for each of GPU 0 and its parts.
int figure(const Device* device, const char* name, std::string& value) {
  std::string all;
  const int failed = look_up(std::to_string(device->gpu) + ".all", all);
  if (failed != kNotSupported) {
    return failed;
  }
  return look_up(key_of(device, name), value);
}

template <typename T>
int number(const Device* device, const char* name, T* out) {
  std::string value;
  const int failed = figure(device, name, value);
  if (failed == kSuccess) {
    *out = static_cast<T>(std::stoull(value));
  }
  return failed;
}

template <typename T>
int numbers(const Device* device, const char* name, std::vector<T>& out) {
  std::string value;
  const int failed = figure(device, name, value);
  std::istringstream words(value);
  for (T one; failed == kSuccess && words >> one;) {
    out.push_back(one);
  }
  return failed;
}

int text(const Device* device, const char* name, char* out, unsigned size) {
  std::string value;
  const int failed = figure(device, name, value);
  if (failed == kSuccess) {
    std::snprintf(out, size, "%s", value.c_str());
  }
  return failed;
}

struct Process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance;
  unsigned compute_instance;
};

// "PID BYTES PID BYTES ..."
int processes(const Device* device, unsigned* count, Process* out) {
  std::vector<unsigned long long> found;
  const int failed = numbers(device, "processes", found);
  if (failed != kSuccess) {
    return failed;
  }
  const auto wanted = static_cast<unsigned>(found.size() / 2);
  const bool fits = out != nullptr && *count >= wanted;
  *count = wanted;
  if (wanted > 0 && !fits) {
    return kInsufficientSize;
  }
  for (unsigned i = 0; i < wanted; ++i) {
    out[i] = {static_cast<unsigned>(found[2 * i]), found[2 * i + 1], kNoInstance, kNoInstance};
  }
  return kSuccess;
}

}  // namespace

extern "C" {

struct Utilization {
  unsigned gpu, memory;
};
struct Memory {
  unsigned long long total, free, used;
};
struct EventData {
  void* device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
struct FieldValue {
  unsigned field, scope;
  long long timestamp, latency;
  int type, result;
  union {
    double as_double;
    unsigned long long as_number;
  } value;
};

int nvmlInitWithFlags(unsigned) {
  std::string value;
  const int failed = look_up("init", value);
  return failed == kNotSupported ? kSuccess : failed;
}

int nvmlShutdown() { return kSuccess; }

const char* nvmlErrorString(int) { return "an error of the fake"; }

int nvmlSystemGetDriverVersion(char* out, unsigned size) {
  std::string value;
  const int failed = look_up("driver", value);
  if (failed == kSuccess) {
    std::snprintf(out, size, "%s", value.c_str());
  }
  return failed;
}

int nvmlDeviceGetCount_v2(unsigned* out) {
  std::string value;
  const int failed = look_up("count", value);
  *out = failed == kSuccess ? static_cast<unsigned>(std::stoul(value)) : 0;
  return failed;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, const Device** out) {
  if (index >= kMaxGpus) {
    return kInvalidArgument;
  }
  *out = &devices[index][0];
  std::string value;
  const int failed = figure(*out, "handle", value);
  return failed == kNotSupported ? kSuccess : failed;
}

int nvmlDeviceGetUUID(const Device* device, char* out, unsigned size) {
  return text(device, "uuid", out, size);
}

int nvmlDeviceGetName(const Device* device, char* out, unsigned size) {
  return text(device, "name", out, size);
}

int nvmlDeviceGetTemperature(const Device* device, int, unsigned* out) {
  return number(device, "temperature", out);
}

int nvmlDeviceGetPowerUsage(const Device* device, unsigned* out) {
  return number(device, "power", out);
}

int nvmlDeviceGetClockInfo(const Device* device, int kind, unsigned* out) {
  return number(device, kind == 1 ? "sm_clock" : "memory_clock", out);
}

int nvmlDeviceGetTotalEccErrors(const Device* device, int kind, int, unsigned long long* out) {
  return number(device, kind == 1 ? "ecc_uncorrected" : "ecc_corrected", out);
}

int nvmlDeviceGetUtilizationRates(const Device* device, Utilization* out) {
  return number(device, "utilization", &out->gpu);
}

int nvmlDeviceGetMemoryInfo(const Device* device, Memory* out) {
  std::vector<unsigned long long> found;
  const int failed = numbers(device, "memory", found);
  if (failed == kSuccess) {
    *out = {found.at(1), found.at(1) - found.at(0), found.at(0)};
  }
  return failed;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(const Device* device, unsigned long long* out) {
  return number(device, "throttle", out);
}

int nvmlDeviceGetComputeRunningProcesses_v2(const Device* device, unsigned* count, Process* out) {
  return processes(device, count, out);
}

#ifndef OLD_DRIVER

int nvmlDeviceGetCurrentClocksEventReasons(const Device* device, unsigned long long* out) {
  return number(device, "throttle", out);
}

int nvmlDeviceGetComputeRunningProcesses_v3(const Device* device, unsigned* count, Process* out) {
  return processes(device, count, out);
}

int nvmlDeviceGetRemappedRows(const Device* device, unsigned* corrected, unsigned* uncorrected,
                              unsigned* pending, unsigned* failure) {
  std::vector<unsigned> found;
  const int failed = numbers(device, "rows", found);
  if (failed == kSuccess) {
    *corrected = found.at(0);
    *uncorrected = found.at(1);
    *pending = found.at(2);
    *failure = found.at(3);
  }
  return failed;
}

// One number for all the counters together; each field has a part of it.
int nvmlDeviceGetFieldValues(const Device* device, int count, FieldValue* values) {
  unsigned long long total = 0;
  const int failed = number(device, "nvlink", &total);
  for (int i = 0; i < count; ++i) {
    values[i].result = failed;
    values[i].type = 3;
    values[i].value.as_number = i == 0 ? total : 0;
  }
  return failed == kNotSupported ? kSuccess : failed;
}

int nvmlDeviceGetMigMode(const Device* device, unsigned* current, unsigned* pending) {
  *pending = 0;
  return number(device, "mig", current);
}

int nvmlDeviceGetMaxMigDeviceCount(const Device*, unsigned* out) {
  *out = kMaxMig;
  return kSuccess;
}

int nvmlDeviceGetMigDeviceHandleByIndex(const Device* device, unsigned index, const Device** out) {
  if (index >= kMaxMig) {
    return kInvalidArgument;
  }
  *out = &devices[device->gpu][index + 1];
  std::string value;
  const int failed = figure(*out, "uuid", value);
  return failed == kNotSupported ? kNotFound : failed;
}

int nvmlDeviceGetGpuInstanceId(const Device* device, unsigned* out) {
  return number(device, "instance", out);
}

#endif  // OLD_DRIVER

int nvmlEventSetCreate(EventSet** out) {
  *out = new EventSet{nullptr, 0};
  return kSuccess;
}

int nvmlDeviceRegisterEvents(const Device* device, unsigned long long kinds, EventSet* events) {
  std::vector<std::string> before;
  const int failed = numbers(device, "xids", before);
  if (failed == kSuccess && (kinds & kXidEvent) != 0) {
    *events = {device, before.size()};
  }
  return failed;
}

// An event is "XID" or "XID:GPU_INSTANCE".
int nvmlEventSetWait_v2(EventSet* events, EventData* out, unsigned timeout_ms) {
  for (unsigned waited_ms = 0; waited_ms <= timeout_ms; waited_ms += 20) {
    // A GPU that is lost still tells why.
    std::string value;
    const int failed = look_up(key_of(events->device, "xids"), value);
    if (failed != kSuccess) {
      return failed;
    }
    std::istringstream words(value);
    const std::vector<std::string> found(std::istream_iterator<std::string>(words), {});
    if (found.size() > events->told) {
      const std::string& event = found[events->told++];
      const auto colon = event.find(':');
      const unsigned instance = colon == std::string::npos
                                    ? kNoInstance
                                    : static_cast<unsigned>(std::stoul(event.substr(colon + 1)));
      *out = {const_cast<Device*>(events->device), kXidEvent, std::stoull(event), instance,
              instance};
      return kSuccess;
    }
    usleep(20000);
  }
  return kTimeout;
}

}  // extern "C"
