// Beacons against a fake driver (fake_cuda.cpp), under ASan and UBSan.
//
// Run by tests/unit/test_native_build.py with a directory to put pages in and the fake.

#include "../beacon.hpp"

#include <dlfcn.h>
#include <sys/wait.h>

#include <thread>

#include "opened.hpp"

namespace {

const char* g_library = nullptr;

// What the fake can be told and asked.
struct Fake {
  void (*fake_reset)();
  void (*fake_context)(int, int);
  void (*fake_set_device)(int);
  int (*fake_current_device)();
  void (*fake_attribute)(int, int, int);
  void* (*fake_stream)(int);
  void (*fake_capturing)(void*, int);
  void (*fake_capture_elsewhere)(int);
  void (*fake_fail)(const char*, int);
  int (*fake_run)(void*, int);
  int (*fake_pending)(void*);
  int (*fake_retained)(int);
  int (*fake_registered)();
  int (*fake_capture_mode)();
  int (*fake_depth)();
  long long (*fake_writes)();
  long long (*fake_calls)();
} g_fake;

void find_fake() {
  void* handle = dlopen(g_library, RTLD_NOW);
  if (handle == nullptr) std::fprintf(stderr, "%s\n", dlerror());
  CHECK(handle != nullptr);
#define FIND(name)                                                             \
  g_fake.name = reinterpret_cast<decltype(g_fake.name)>(dlsym(handle, #name)); \
  CHECK(g_fake.name != nullptr)
  FIND(fake_reset);
  FIND(fake_context);
  FIND(fake_set_device);
  FIND(fake_current_device);
  FIND(fake_attribute);
  FIND(fake_stream);
  FIND(fake_capturing);
  FIND(fake_capture_elsewhere);
  FIND(fake_fail);
  FIND(fake_run);
  FIND(fake_pending);
  FIND(fake_retained);
  FIND(fake_registered);
  FIND(fake_capture_mode);
  FIND(fake_depth);
  FIND(fake_writes);
  FIND(fake_calls);
#undef FIND
}

constexpr BeaconKind kReached = BeaconKind::reached;
constexpr BeaconKind kPassed = BeaconKind::passed;

// A rank with a group in slot 0, whose process has a context on device 0.
class Rank {
 public:
  Rank() : page_("beacon.page") {
    g_fake.fake_reset();
    g_fake.fake_context(0, 1);
    g_fake.fake_set_device(0);
    writer::define_group(0, "0", "dp", {0, 1}, 0, "nccl");
    beacon::allow(g_library);
  }
  std::int64_t reached() const { return page_.read().groups[0].reached; }
  std::int64_t passed() const { return page_.read().groups[0].passed; }
  std::string off() const { return page_.read().beacons_off; }

 private:
  Opened page_;
};

bool reach(std::uint64_t seq, void* stream = nullptr, int device = 0) {
  return beacon::write(kReached, 0, seq, device, stream);
}

void the_gpu_tells_how_far_its_stream_has_come() {
  const Rank rank;
  CHECK(rank.off() == kNoBeaconsYet && rank.reached() == -1);
  CHECK(reach(1) && beacon::write(kPassed, 0, 1, 0, nullptr) && reach(2));
  CHECK(rank.off().empty());
  CHECK(rank.reached() == 0 && rank.passed() == 0);
  CHECK(g_fake.fake_run(nullptr, 1) == 1);
  CHECK(rank.reached() == 1 && rank.passed() == 0);
  CHECK(g_fake.fake_run(nullptr, 1) == 1);
  CHECK(rank.reached() == 1 && rank.passed() == 1);
  CHECK(g_fake.fake_run(nullptr, -1) == 1);
  CHECK(rank.reached() == 2 && rank.passed() == 1);
  CHECK(g_fake.fake_depth() == 1);
}

void a_stream_that_overtakes_another_does_not_hide_it() {
  const Rank rank;
  void* compute = g_fake.fake_stream(0);
  void* gather = g_fake.fake_stream(0);
  for (std::uint64_t seq = 1; seq <= 10; ++seq) CHECK(reach(seq, gather));
  g_fake.fake_run(gather, -1);
  CHECK(reach(11, compute) && reach(12, gather) && reach(13, gather));
  g_fake.fake_run(gather, -1);
  CHECK(rank.reached() == 10);
  g_fake.fake_run(compute, -1);
  CHECK(rank.reached() == 13);
}

void what_the_host_is_ahead_is_never_told_as_reached() {
  const Rank rank;
  constexpr std::uint64_t kLast = 5 * kBeacons + 3;
  // Numbers 20, 40 and so on were issued from C++ and have no beacon.
  for (std::uint64_t seq = 1; seq <= kLast; ++seq) CHECK(seq % 20 == 0 || reach(seq));
  std::int64_t before = rank.reached();
  CHECK(before == 0);
  for (std::uint64_t seq = 1; seq <= kLast; ++seq) {
    if (seq % 20 == 0) continue;
    CHECK(g_fake.fake_run(nullptr, 1) == 1);
    const std::int64_t told = rank.reached();
    CHECK(told >= before && told <= static_cast<std::int64_t>(seq) + 1);
    CHECK(told < static_cast<std::int64_t>(seq + 1) || (seq + 1) % 20 == 0 || seq == kLast);
    before = told;
  }
  CHECK(before == static_cast<std::int64_t>(kLast));
  // One that comes late and alone is not taken for those before it.
  CHECK(reach(kLast + 40));
  CHECK(rank.reached() == static_cast<std::int64_t>(kLast) + 39);
}

void an_old_place_and_a_new_group_do_not_confuse_it() {
  const Rank rank;
  CHECK(reach(40) && !reach(40 - kBeacons) && reach(40));
  g_fake.fake_run(nullptr, -1);
  CHECK(rank.reached() == 40);
  CHECK(!reach(0) && !beacon::write(kReached, kMaxGroups, 1, 0, nullptr));
  writer::define_group(0, "1", "tp", {0, 1}, 0, "nccl");
  CHECK(rank.reached() == -1);
}

void nothing_is_written_while_a_stream_is_captured() {
  const Rank rank;
  void* stream = g_fake.fake_stream(0);
  g_fake.fake_capture_elsewhere(1);  // registering must not invalidate it
  CHECK(reach(1, stream));
  CHECK(g_fake.fake_capture_mode() == 0);
  CHECK(!reach(2));  // the default stream, while another one captures
  g_fake.fake_capture_elsewhere(0);
  for (const int status : {1, 2}) {
    g_fake.fake_capturing(stream, status);
    CHECK(!reach(2, stream));
  }
  g_fake.fake_capturing(stream, 0);
  CHECK(g_fake.fake_writes() == 1 && rank.off().empty());
  g_fake.fake_run(stream, -1);
  CHECK(rank.reached() == 1);
  CHECK(reach(2, stream));
}

void a_capture_that_forbids_it_for_now_ends_nothing() {
  const Rank rank;
  g_fake.fake_fail("cuMemHostRegister_v2", 900);
  CHECK(!reach(1) && g_fake.fake_retained(0) == 0);
  g_fake.fake_fail("cuMemHostRegister_v2", 0);
  CHECK(reach(2) && rank.off().empty());
  g_fake.fake_fail("cuStreamWriteValue64_v2", 906);
  CHECK(!reach(3) && rank.off().empty());
  g_fake.fake_run(nullptr, -1);
  CHECK(rank.reached() == 2);  // 3 was not asked for
}

void no_context_is_made() {
  const Rank rank;
  g_fake.fake_context(0, 0);
  g_fake.fake_set_device(-1);
  CHECK(!reach(1) && g_fake.fake_retained(0) == 0 && rank.off() == kNoBeaconsYet);
  g_fake.fake_context(0, 1);
  CHECK(reach(1) && g_fake.fake_retained(0) == 1);
  // A thread that has never used the device has no context either afterwards.
  std::thread([] { CHECK(reach(2) && g_fake.fake_depth() == 0); }).join();
  CHECK(g_fake.fake_retained(0) == 1);
}

void several_devices_share_the_page() {
  const Rank rank;
  g_fake.fake_context(1, 1);
  void* second = g_fake.fake_stream(1);
  CHECK(reach(1) && reach(2, second, 1) && reach(3));
  CHECK(g_fake.fake_current_device() == 0 && g_fake.fake_depth() == 1);
  g_fake.fake_run(second, -1);
  g_fake.fake_run(nullptr, -1);
  CHECK(rank.reached() == 3 && g_fake.fake_retained(1) == 1);
  CHECK(!reach(4, nullptr, -1) && !reach(4, nullptr, 99) && rank.off().empty());
}

void what_fails_turns_them_off_with_a_reason() {
  struct Case {
    const char* function;
    int error;
    const char* why;
  };
  for (const Case& failure :
       {Case{"cuDeviceGet", 3, "error 3 in cuDeviceGet"},
        Case{"cuDeviceGetAttribute", 1, "error 1 in cuDeviceGetAttribute"},
        Case{"cuDevicePrimaryCtxGetState", 1, "error 1 in cuDevicePrimaryCtxGetState"},
        Case{"cuDevicePrimaryCtxRetain", 2, "error 2 in cuDevicePrimaryCtxRetain"},
        Case{"cuCtxGetCurrent", 4, "error 4 in cuCtxPushCurrent"},
        Case{"cuMemHostRegister_v2", 801, "CUDA_ERROR_NOT_SUPPORTED in cuMemHostRegister"},
        Case{"cuMemHostGetDevicePointer_v2", 1, "error 1 in cuMemHostGetDevicePointer"},
        Case{"cuStreamIsCapturing", 700, "CUDA_ERROR_ILLEGAL_ADDRESS in cuStreamIsCapturing"},
        Case{"cuStreamWriteValue64_v2", 700,
             "CUDA_ERROR_ILLEGAL_ADDRESS in cuStreamWriteValue64"}}) {
    const Rank rank;
    g_fake.fake_fail(failure.function, failure.error);
    CHECK(!reach(1));
    if (rank.off() != failure.why) std::fprintf(stderr, "%s\n", rank.off().c_str());
    CHECK(rank.off() == failure.why && !beacon::allowed() && rank.reached() == -1);
    CHECK(g_fake.fake_depth() == 1);
    const long long calls = g_fake.fake_calls();
    CHECK(!reach(2) && g_fake.fake_calls() == calls);
    g_fake.fake_fail(failure.function, 0);
    CHECK(!reach(3));  // for good
  }
}

void what_the_device_lacks_turns_them_off() {
  for (const int attribute : {99, 122}) {
    const Rank rank;
    g_fake.fake_attribute(0, attribute, 0);
    CHECK(!reach(1) && g_fake.fake_retained(0) == 0);
    CHECK(rank.off().rfind("the device ", 0) == 0);
  }
}

void after_a_failure_what_was_told_is_told_no_more() {
  const Rank rank;
  CHECK(reach(1));
  g_fake.fake_run(nullptr, -1);
  CHECK(rank.reached() == 1);
  g_fake.fake_fail("cuStreamWriteValue64_v2", 700);
  CHECK(!reach(2) && rank.reached() == -1);
}

void without_the_library_there_are_none() {
  const Opened page("none.page");
  CHECK(!beacon::write(kReached, 0, 1, 0, nullptr));
  CHECK(page.read().beacons_off == kBeaconsNotAllowed);
  beacon::allow("libno-such-thing.so.1");
  CHECK(!beacon::write(kReached, 0, 1, 0, nullptr));
  CHECK(page.read().beacons_off == "libno-such-thing.so.1 is not loaded in this process");
  // It is there, and no driver.
  int devices = 0;
  CHECK(beacon::examine("libm.so.6", devices) == "libm.so.6 has no cuInit");
  CHECK(!beacon::examine("libno-such-thing.so.1", devices).empty());
}

void a_machine_can_be_examined() {
  g_fake.fake_reset();
  int devices = 0;
  CHECK(beacon::examine(g_library, devices).empty() && devices == 2);
  CHECK(g_fake.fake_retained(0) == 0);
  g_fake.fake_attribute(0, 122, 0);
  CHECK(beacon::examine(g_library, devices).empty() && devices == 1);
  g_fake.fake_attribute(1, 122, 0);
  CHECK(!beacon::examine(g_library, devices).empty() && devices == 0);
  g_fake.fake_fail("cuInit", 801);
  CHECK(beacon::examine(g_library, devices) == "CUDA_ERROR_NOT_SUPPORTED in cuInit");
}

void a_child_writes_nothing() {
  const Rank rank;
  CHECK(reach(1));
  const pid_t child = fork();
  if (child == 0) {
    const long long calls = g_fake.fake_calls();
    const bool quiet = !reach(2) && !beacon::allowed() && g_fake.fake_calls() == calls;
    _exit(quiet ? 0 : 1);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(reach(2) && g_fake.fake_pending(nullptr) == 2);
}

void nothing_is_left_when_the_page_is_closed() {
  {
    const Rank rank;
    CHECK(reach(1) && g_fake.fake_registered() == 1);
  }
  CHECK(g_fake.fake_registered() == 0 && g_fake.fake_retained(0) == 0 && !reach(2));
}

void a_million_of_them_leave_nothing_behind() {
  const Rank rank;
  constexpr std::uint64_t kMany = 1'000'000;
  CHECK(reach(1));
  const long long calls = g_fake.fake_calls();
  for (std::uint64_t seq = 2; seq <= kMany; ++seq) {
    CHECK(reach(seq) && beacon::write(kPassed, 0, seq, 0, nullptr));
    if (seq % 50 == 0) g_fake.fake_run(nullptr, -1);
  }
  g_fake.fake_run(nullptr, -1);
  CHECK(rank.reached() == static_cast<std::int64_t>(kMany));
  // The context, the capture, the write: nothing is made that would have to be freed.
  CHECK(g_fake.fake_calls() - calls == 3 * 2 * static_cast<long long>(kMany - 1));
  CHECK(g_fake.fake_retained(0) == 1);
}

void threads_of_one_group_do_not_harm_each_other() {
  const Rank rank;
  CHECK(reach(1));  // while the device is opened, the beacons of others are left out
  g_fake.fake_run(nullptr, -1);
  std::thread threads[4];
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads[t] = std::thread([t] {
      void* stream = g_fake.fake_stream(0);
      for (std::uint64_t seq = 1 + t; seq <= 4000; seq += 4) {
        reach(seq, stream);
        if (seq % 64 == 1 + t) g_fake.fake_run(stream, -1);
      }
      g_fake.fake_run(stream, -1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(rank.off().empty() && rank.reached() == 4000);
}

void any_bytes_read_as_some_number() {
  const Rank rank;
  CHECK(reach(1));
  std::vector<unsigned char> copy(kPageBytes);  // as of a file that was damaged
  for (unsigned seed = 0; seed < 64; ++seed) {
    const int fd = ::open(path_of("beacon.page").c_str(), O_RDONLY);
    CHECK(::read(fd, copy.data(), copy.size()) == static_cast<ssize_t>(copy.size()));
    ::close(fd);
    auto* words = copy.data() + offsetof(Page, beacons);
    for (std::size_t i = 0; i < sizeof(Page::beacons); ++i) {
      words[i] = static_cast<unsigned char>((i * 2654435761u + seed * 40503u) >> (seed % 24));
    }
    PageView view{};
    CHECK(read_page(copy.data(), copy.size(), true, view).empty());
    CHECK(view.groups[0].reached >= -1 && view.groups[0].passed >= -1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 3);
  g_directory = argv[1];
  g_library = argv[2];
  without_the_library_there_are_none();
  find_fake();
  the_gpu_tells_how_far_its_stream_has_come();
  a_stream_that_overtakes_another_does_not_hide_it();
  what_the_host_is_ahead_is_never_told_as_reached();
  an_old_place_and_a_new_group_do_not_confuse_it();
  nothing_is_written_while_a_stream_is_captured();
  a_capture_that_forbids_it_for_now_ends_nothing();
  no_context_is_made();
  several_devices_share_the_page();
  what_fails_turns_them_off_with_a_reason();
  what_the_device_lacks_turns_them_off();
  after_a_failure_what_was_told_is_told_no_more();
  a_machine_can_be_examined();
  a_child_writes_nothing();
  nothing_is_left_when_the_page_is_closed();
  a_million_of_them_leave_nothing_behind();
  threads_of_one_group_do_not_harm_each_other();
  any_bytes_read_as_some_number();
  std::puts("good");
}
