// Requests that the sampler does not answer, under ASan and UBSan.
//
// Run by tests/unit/test_native_build.py with a directory to put pages in, the fakes of
// libcuda.so.1, libtorch_cuda.so and libtorch_cpu.so, and the version of torch that these are of.

#include "../dump.hpp"

#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "../cuda.hpp"
#include "../moments.hpp"
#include "opened.hpp"

namespace {

using SetDump = void (*)(const char*);
void* g_libraries[3];
const char* g_files[3];

SetDump recorder(int library) {
  return reinterpret_cast<SetDump>(dlsym(g_libraries[library], "fake_dump"));
}

void load(int library) {
  g_libraries[library] = dlopen(g_files[library], RTLD_NOW);
  if (g_libraries[library] == nullptr) std::fprintf(stderr, "%s\n", dlerror());
  CHECK(g_libraries[library] != nullptr);
}

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// True if something becomes so within 10 s.
template <class Condition>
bool soon(Condition condition) {
  for (int i = 0; i < 10'000 && !condition(); ++i) usleep(1000);
  return condition();
}

class Rank {
 public:
  Rank() : page_("dump.page"), request(path_of("dump.page.req")) {}
  ~Rank() {
    unlink(request.c_str());
    unlink(answer.c_str());
  }
  void ask() const { std::ofstream{request}; }
  // What is answered after so many beats of the heart.
  std::string answered() const {
    CHECK(soon([this] { return exists(answer); }));
    struct stat status;
    CHECK(stat(answer.c_str(), &status) == 0 && (status.st_mode & 0777) == 0600);
    std::stringstream text;
    text << std::ifstream(answer).rdbuf();
    unlink(answer.c_str());
    CHECK(!exists(request) && !exists(answer + ".native"));
    return text.str();
  }

 private:
  Opened page_;

 public:
  std::string request;
  std::string answer = path_of("dump.page.flight");
};

void beat(int times) {
  for (int i = 0; i < times; ++i) dump::look();
}

// Asks, and lets the heart beat until there is an answer.
std::string beats_until(const Rank& rank) {
  rank.ask();
  CHECK(soon([&] { return dump::look(), exists(rank.answer); }));
  return rank.answered();
}

void without_all_of_torch_the_request_stays_the_samplers() {
  const Rank rank;
  CHECK(!dump::use(true, true));  // a part of what there is would pass for the whole
  CHECK(!dump::use(false, false));
  rank.ask();
  beat(5);
  CHECK(!dump::answer());
  usleep(50'000);
  CHECK(exists(rank.request) && !exists(rank.answer));
}

void what_the_sampler_leaves_is_answered_with_both_recorders() {
  const Rank rank;
  recorder(1)("{\"entries\":[1]}");
  recorder(2)("{\"entries\":[2]}");
  beat(3);
  CHECK(!exists(rank.answer));  // nobody has asked
  rank.ask();
  beat(1);
  usleep(50'000);
  CHECK(exists(rank.request));  // the sampler has its chance
  beat(1);
  CHECK(rank.answered() == "{\"entries\":[1]}\n{\"entries\":[2]}\n");
  recorder(1)("{\"version\":\"2.10\"}");  // it has recorded nothing
  CHECK(beats_until(rank) == "{\"entries\":[2]}\n");
}

void the_sampler_has_it_answered_at_once() {
  const Rank rank;
  recorder(1)("{\"entries\":[4]}");
  recorder(2)("{}");
  rank.ask();
  CHECK(soon([&] { return dump::answer() && !exists(rank.request); }));
  CHECK(rank.answered() == "{\"entries\":[4]}\n");
}

void a_recorder_that_throws_harms_nobody() {
  const Rank rank;
  recorder(1)(nullptr);
  rank.ask();
  beat(2);
  const auto has_thrown = reinterpret_cast<bool (*)()>(dlsym(g_libraries[1], "fake_has_thrown"));
  CHECK(soon([&] { return !exists(rank.request) && has_thrown(); }));
  recorder(1)("{}");
  recorder(2)("{}");
  CHECK(beats_until(rank) == "{}");
}

// A moment with the groups that gloo's recorder counts.
MomentData counted() {
  static std::uint64_t ns = 0;
  MomentData moment{};
  moment.ns = ns += 10'000'000'000;
  moments::count_calls(moment);
  return moment;
}

void calls_are_counted_by_the_slots_of_their_groups() {
  const Rank rank;
  const auto set_status = reinterpret_cast<SetDump>(dlsym(g_libraries[2], "fake_status"));
  CHECK(counted().count == 0);  // the recorder throws
  set_status("{\"version\":\"2.10\"}");
  CHECK(counted().count == 0);
  recorder(2)(
      "{\"entries\":[{\"pg_id\":10,\"process_group\":[\"7\",\"x\"]},"
      "{\"pg_id\":1,\"process_group\":[\"5\",\"undefined\"]}]}");
  const std::string status =
      "{\"pg_status\":{\"1\":{\"last_completed_collective\":\"-1\","
      "\"last_enqueued_collective\":\"3\",\"last_started_collective\":\"-1\"},"
      "\"10\":{\"last_completed_collective\":\"41\",\"last_enqueued_collective\":\"42\"},"
      "\"11\":{\"last_enqueued_collective\":\"1\"}},\"version\":\"2.10\"}";
  set_status(status.c_str());
  CHECK(counted().count == 0);  // groups that the page does not know
  writer::define_group(0, "5", "", {0, 3}, 0, "cpu:gloo,cuda:gloo");
  writer::define_group(1, "7", "", {0, 3}, 1, "gloo");
  writer::raise_enqueued(0, 1, 1);
  CHECK(counted().count == 0 && counted().count == 0);  // the second one may join the table
  writer::raise_enqueued(1, 1, 1);
  CHECK(counted().count == 0);  // it may be about to
  CHECK(counted().count == 0);  // by now they are looked for by their names
  const MomentData moment = counted();
  CHECK(moment.count == 2);
  CHECK(moment.groups[0].slot == 0 && moment.groups[0].issued == 3);
  CHECK(moment.groups[0].completed == 0);
  CHECK(moment.groups[1].slot == 1 && moment.groups[1].issued == 42);
  CHECK(moment.groups[1].completed == 41);
  for (std::size_t length = 0; length < status.size(); ++length) {  // not written to its end
    set_status(status.substr(0, length).c_str());
    CHECK(counted().count <= 2);
  }
  set_status(status.c_str());
  CHECK(counted().count == 2);
  writer::define_group(2, "9", "", {0, 3}, 2, "cpu:gloo,cuda:nccl");
  writer::raise_enqueued(2, 1, 1);
  CHECK(counted().count == 0 && counted().count == 0);  // that call may have been NCCL's
  writer::retire_group(2);
  CHECK(counted().count == 0 && counted().count == 2);
  writer::set_groups_left_out(1);
  CHECK(counted().count == 0 && counted().count == 0);
  writer::set_groups_left_out(0);
  set_status("");
}

void a_heart_that_beats_answers() {
  const Rank rank;
  recorder(2)("{\"entries\":[3]}");
  CHECK(writer::start_heartbeat(5, false) == 0);
  rank.ask();
  CHECK(rank.answered() == "{\"entries\":[3]}\n");
  writer::stop_heartbeat();
}

void a_process_that_ends_leaves_it_and_has_the_others_asked() {
  const Rank rank;
  recorder(2)("{\"entries\":[4]}");
  const std::string other = path_of(("other-" + std::to_string(getpid()) + ".page").c_str());
  std::ofstream{other, std::ios::binary}
      << std::ifstream(path_of("dump.page"), std::ios::binary).rdbuf();
  std::ofstream{path_of("not-a.page")} << "x";
  std::thread answers([&] {
    CHECK(soon([&] { return exists(other + ".req"); }));
    unlink((other + ".req").c_str());
  });
  dump::leave(10'000);
  answers.join();
  CHECK(rank.answered() == "{\"entries\":[4]}\n");
  const std::string gone = path_of("gone-2147483647.page");  // no such process
  std::ofstream{gone, std::ios::binary} << std::ifstream(other, std::ios::binary).rdbuf();
  std::ofstream{other + ".flight"};  // it has just answered
  dump::leave(3'600'000);
  unlink((other + ".flight").c_str());
  unlink(gone.c_str());
  CHECK(!exists(gone + ".req"));
  dump::leave(1);  // the other does not answer
  CHECK(!exists(other + ".req") && !exists(path_of("not-a.page") + ".req"));
  unlink(other.c_str());
  unlink(path_of("not-a.page").c_str());
  CHECK(soon([&] { return exists(rank.answer); }));
}

void a_forks_child_answers_nothing() {
  const Rank rank;
  rank.ask();
  const pid_t child = fork();
  if (child == 0) {
    beat(5);
    _exit(0);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  usleep(20'000);
  CHECK(exists(rank.request));
}

// The last: there is no end to them.
void the_recorder_of_each_backend_is_asked(bool each) {
  const Rank rank;
  recorder(1)("{}");
  recorder(2)("{\"entries\":[5]}");
  dump::add("nccl2");
  dump::add("mine");
  dump::add("nccl2");
  const std::string gloo = "{\"entries\":[5]}\n";
  const std::string others = "{\"entries\":[\"nccl2\"]}\n{\"entries\":[\"mine\"]}\n";
  CHECK(beats_until(rank) == (each ? gloo + others : gloo));
  for (int i = 0; i < 14; ++i) dump::add(std::to_string(i).c_str());
  CHECK(dump::answer());
  dump::add("more than there is room for");
  CHECK(!dump::answer());  // the sampler does, with all of them
}

void a_thread_tells_how_careful_it_was_of_captures() {
  CHECK(cuda::exchange_capture_mode("libnothing.so.7", 2) == -1);
  std::thread([] {
    CHECK(cuda::exchange_capture_mode(cuda::kLibrary, cuda::kCaptureModeRelaxed) == 0);
    CHECK(cuda::exchange_capture_mode(cuda::kLibrary, 0) == cuda::kCaptureModeRelaxed);
  }).join();
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 6);
  g_directory = argv[1];
  for (int i = 0; i < 3; ++i) g_files[i] = argv[2 + i];
  without_all_of_torch_the_request_stays_the_samplers();
  load(0);
  load(1);
  without_all_of_torch_the_request_stays_the_samplers();
  load(2);
  CHECK(dump::use(true, true));
  what_the_sampler_leaves_is_answered_with_both_recorders();
  the_sampler_has_it_answered_at_once();
  a_recorder_that_throws_harms_nobody();
  calls_are_counted_by_the_slots_of_their_groups();
  a_heart_that_beats_answers();
  a_process_that_ends_leaves_it_and_has_the_others_asked();
  a_forks_child_answers_nothing();
  a_thread_tells_how_careful_it_was_of_captures();
  the_recorder_of_each_backend_is_asked(std::string(argv[5]) == "2.15");
  std::puts("good");
  return 0;
}
