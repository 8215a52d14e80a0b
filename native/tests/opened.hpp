// A page of this process, for tests of the core.

#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "../reader.hpp"
#include "../writer.hpp"

using namespace hangwatch;

inline std::string g_directory;

#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                \
    }                                                                              \
  } while (false)

inline std::string path_of(const char* name) { return g_directory + "/" + name; }

// A page of this process, and a reader's mapping of it.
class Opened {
 public:
  explicit Opened(const char* name) : path_(path_of(name)) {
    writer::Identity identity;
    identity.pid = getpid();
    identity.rank = 3;
    identity.world_size = 8;
    identity.host = "node-1";
    CHECK(writer::open(path_.c_str(), identity) == 0);
    const int fd = ::open(path_.c_str(), O_RDONLY);
    memory_ = mmap(nullptr, kPageBytes, PROT_READ, MAP_SHARED, fd, 0);
    ::close(fd);
    CHECK(memory_ != MAP_FAILED);
  }
  ~Opened() {
    writer::close();
    munmap(memory_, kPageBytes);
    unlink(path_.c_str());
  }
  const unsigned char* bytes() const { return static_cast<const unsigned char*>(memory_); }
  PageView read() const {
    PageView view{};
    const std::string why = read_page(bytes(), kPageBytes, true, view);
    if (!why.empty()) std::fprintf(stderr, "%s\n", why.c_str());
    CHECK(why.empty());
    return view;
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

 private:
  std::string path_;
  void* memory_;
};
