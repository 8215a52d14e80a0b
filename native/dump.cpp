#include "dump.hpp"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cuda.hpp"
#include "writer.hpp"

namespace hangwatch::dump {
namespace {

// std::string(bool includeCollectives, bool onlyActive), in FlightRecorder.cpp and
// ProcessGroupNCCL.cpp of torch/csrc/distributed/c10d.
using Dump = std::string (*)(bool, bool);
// The general one of torch 2.15 and later keeps a recorder for each backend.
using DumpOf = std::string (*)(bool, bool, const std::string& backend);
constexpr const char* kNccl = "_ZN4c10d20dump_nccl_trace_jsonB5cxx11Ebb";
constexpr const char* kGeneral = "_ZN4c10d18dump_fr_trace_jsonB5cxx11Ebb";
constexpr const char* kGeneralOf =
    "_ZN4c10d18dump_fr_trace_jsonEbbRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
constexpr const char* kGloo = "gloo";
constexpr const char* kLibraries[] = {"libtorch_cuda.so", "libtorch_cpu.so"};

struct Dumps {
  Dump nccl = nullptr;
  Dump general = nullptr;
  DumpOf general_of = nullptr;
};
Dumps g_dumps;                   // written once, before any is asked for
std::atomic<bool> g_can{false};  // g_dumps has all that this torch offers
constexpr std::size_t kMaxBackends = 16;
// Of the general recorders, beside gloo's. Not freed: the heart beats until the process is gone.
const std::string* g_backends[kMaxBackends];
std::atomic<std::size_t> g_backend_count{0};

struct Paths {
  std::string request;  // empty for a process that ends: there is none
  std::string draft;
  std::string answer;
};
Paths* g_paths = nullptr;  // not freed in a fork's child
constexpr const char* kPage = ".page";
constexpr const char* kRequest = ".req";
constexpr const char* kAnswer = ".flight";
constexpr std::time_t kFreshS = 2;
constexpr std::size_t kMaxOthers = 64;
constexpr unsigned kSliceMs = 10;
int g_beats = 0;  // for how many beats a request has been there
std::atomic<bool> g_busy{false};

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// A function in a library that this process has loaded, or nullptr.
void* find(const char* name) {
#if defined(_GLIBCXX_USE_CXX11_ABI) && _GLIBCXX_USE_CXX11_ABI
  for (const char* library : kLibraries) {
    void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) continue;
    void* function = dlsym(handle, name);
    dlclose(handle);  // the process keeps it
    if (function != nullptr) return function;
  }
#endif
  return nullptr;
}

bool write_all(const char* path, const std::string& data) {
  const int fd = ::open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return false;
  std::size_t done = 0;
  while (done < data.size()) {
    const ssize_t wrote = ::write(fd, data.data() + done, data.size() - done);
    if (wrote <= 0) break;
    done += static_cast<std::size_t>(wrote);
  }
  return ::close(fd) == 0 && done == data.size();
}

void write_dump(const Paths& paths) {
  // A dump asks events of the device, which would invalidate the capture of another thread.
  cuda::exchange_capture_mode(cuda::kLibrary, cuda::kCaptureModeRelaxed);
  std::string data;
  std::string without;  // entries: where none of them has any
  const auto add = [&](std::string dumped) {
    if (dumped.find("\"entries\"") != std::string::npos) data += dumped + "\n";
    without = std::move(dumped);
  };
  if (g_dumps.nccl != nullptr) add(g_dumps.nccl(true, false));
  if (g_dumps.general != nullptr) add(g_dumps.general(true, false));
  if (g_dumps.general_of != nullptr) {
    add(g_dumps.general_of(true, false, kGloo));
    const std::size_t count = g_backend_count.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < count; ++i) add(g_dumps.general_of(true, false, *g_backends[i]));
  }
  if (data.empty()) data = without;
  if (!write_all(paths.draft.c_str(), data) ||
      std::rename(paths.draft.c_str(), paths.answer.c_str()) != 0) {
    unlink(paths.draft.c_str());
  }
}

void* thread_main(void* argument) {
  const std::unique_ptr<const Paths> paths(static_cast<const Paths*>(argument));
  try {
    const std::string& request = paths->request;
    // Where it is gone, the sampler has answered it.
    if (request.empty() || unlink(request.c_str()) == 0) write_dump(*paths);
  } catch (...) {  // c10d's, or no memory: the watchdog does without
  }
  g_busy.store(false);
  return nullptr;
}

void start_thread(bool is_asked = true) {
  if (g_busy.exchange(true)) return;
  auto* paths = new (std::nothrow) Paths(*g_paths);  // its own: the page may be closed meanwhile
  if (paths != nullptr && !is_asked) paths->request.clear();
  // No signal of the job's may be handled by it.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  if (paths != nullptr && pthread_create(&thread, nullptr, thread_main, paths) == 0) {
    pthread_detach(thread);
  } else {
    delete paths;
    g_busy.store(false);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// A request to another rank, and the process that is to answer it.
struct Asked {
  std::string request;
  pid_t pid;
  bool is_due() const {
    return access(request.c_str(), F_OK) == 0 && (kill(pid, 0) == 0 || errno == EPERM);
  }
};

// True if this rank has just answered, as where several are aborted at once.
bool has_answered(const std::string& page) {
  struct stat answer;
  return stat((page + kAnswer).c_str(), &answer) == 0 &&
         std::time(nullptr) - answer.st_mtime <= kFreshS;
}

// Ask the other ranks of this directory that nobody asks yet, as the watchdog does.
std::vector<Asked> ask_others(const Paths& own) {
  const std::string directory = own.request.substr(0, own.request.rfind('/'));
  std::vector<Asked> asked;
  DIR* const pages = opendir(directory.c_str());
  if (pages == nullptr) return asked;
  const dirent* entry = nullptr;
  while (asked.size() < kMaxOthers && (entry = readdir(pages)) != nullptr) {
    const std::string page = directory + "/" + entry->d_name;
    const std::string request = page + kRequest;
    if (!ends_with(page, kPage) || request == own.request || has_answered(page)) continue;
    const int fd =
        ::open(request.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) continue;
    ::close(fd);
    if (writer::ring_at(page.c_str()) == 0) {
      asked.push_back({request, std::atoi(page.c_str() + page.rfind('-') + 1)});
    } else {
      unlink(request.c_str());
    }
  }
  closedir(pages);
  return asked;
}

}  // namespace

void open(const char* page) noexcept try {
  const std::string path = page;
  g_beats = 0;
  g_paths = new Paths{path + kRequest, path + ".flight.native", path + kAnswer};
} catch (...) {
  g_paths = nullptr;
}

void close() noexcept {
  delete g_paths;
  g_paths = nullptr;
}

void disown() noexcept {
  g_paths = nullptr;
  g_busy.store(false, std::memory_order_relaxed);
}

bool use(bool nccl, bool general) noexcept try {
  Dumps found;
  if (nccl) found.nccl = reinterpret_cast<Dump>(find(kNccl));
  if (general) found.general = reinterpret_cast<Dump>(find(kGeneral));
  if (general && found.general == nullptr) {
    found.general_of = reinterpret_cast<DumpOf>(find(kGeneralOf));
  }
  const bool has_nccl = found.nccl != nullptr;
  const bool has_general = found.general != nullptr || found.general_of != nullptr;
  if ((!nccl && !general) || has_nccl != nccl || has_general != general) return false;
  if (!g_can.load(std::memory_order_acquire)) {
    g_dumps = found;
    g_can.store(true, std::memory_order_release);
  }
  return true;
} catch (...) {
  return false;
}

void add(const char* backend) noexcept try {
  const std::size_t count = g_backend_count.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < count; ++i) {
    if (*g_backends[i] == backend) return;
  }
  if (count == kMaxBackends) {
    g_can.store(false, std::memory_order_release);  // the sampler has all of them
    return;
  }
  g_backends[count] = new std::string(backend);
  g_backend_count.store(count + 1, std::memory_order_release);
} catch (...) {
  g_can.store(false, std::memory_order_release);
}

bool answer() noexcept try {
  if (g_paths == nullptr || !g_can.load(std::memory_order_acquire)) return false;
  start_thread();
  return true;
} catch (...) {
  g_busy.store(false);
  return false;
}

void leave(unsigned ms) noexcept try {
  if (g_paths == nullptr) return;
  const std::vector<Asked> asked = ask_others(*g_paths);
  if (g_can.load(std::memory_order_acquire)) start_thread(false);  // or one is at it
  const auto is_due = [](const Asked& other) { return other.is_due(); };
  const auto all_answer = [&] {
    return !g_busy.load() && std::none_of(asked.begin(), asked.end(), is_due);
  };
  for (unsigned waited = 0; waited < ms && !all_answer(); waited += kSliceMs) {
    usleep(kSliceMs * 1000);
  }
  if (!asked.empty()) usleep(kSliceMs * 1000);  // the last has just begun
  for (const Asked& other : asked) unlink(other.request.c_str());
} catch (...) {
  g_busy.store(false);
}

std::string ask_gloo(bool entries) {
  if (g_paths == nullptr || !g_can.load(std::memory_order_acquire)) return {};
  if (g_dumps.general != nullptr) return g_dumps.general(entries, false);
  if (g_dumps.general_of != nullptr) return g_dumps.general_of(entries, false, kGloo);
  return {};
}

void look() noexcept try {
  if (g_paths == nullptr || !g_can.load(std::memory_order_acquire)) return;
  g_beats = access(g_paths->request.c_str(), F_OK) == 0 ? g_beats + 1 : 0;
  if (g_beats >= 2) start_thread();
} catch (...) {
  g_busy.store(false);
}

}  // namespace hangwatch::dump
