// The core by itself, under ASan and UBSan: what a writer writes, a reader reads,
// whatever else is going on, and no bytes make the reader do wrong.
//
// Run by tests/unit/test_native_build.py with a directory to put pages in.

#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <thread>

#include "../moments.hpp"
#include "opened.hpp"

namespace {

using namespace hangwatch;

// An event all of whose fields follow from one number.
EventData event_of(std::uint64_t n, std::uint32_t slot) {
  EventData event{};
  event.slot = slot;
  event.issued_ns = n + 1;
  event.blocked_ns = n + 2;
  event.seq = n;
  event.op = event.wire = event.dtype = event.site = kNone;
  event.root = static_cast<std::int32_t>(n & 0xffff);
  event.peer = event.root;
  event.tag = static_cast<std::int64_t>(n);
  event.ndim = kMaxDims;
  for (std::int64_t& size : event.shape) size = static_cast<std::int64_t>(n);
  event.state = static_cast<std::uint32_t>(OpState::blocked);
  return event;
}

bool is_whole(const EventData& event) {
  bool whole =
      event.issued_ns == event.seq + 1 && event.tag == static_cast<std::int64_t>(event.seq) &&
      event.root == static_cast<std::int32_t>(event.seq & 0xffff) && event.peer == event.root;
  for (const std::int64_t size : event.shape) whole &= size == event.tag;
  if (event.state == static_cast<std::uint32_t>(OpState::done))
    whole &= event.done_ns >= event.issued_ns;
  return whole;
}

void members_survive_the_way_through_text() {
  const std::vector<std::vector<std::int64_t>> cases = {
      {},       {5}, {0, 1}, {0, 1, 2, 3}, {0, 8, 16, 24}, {3, 1, 2}, {0, 1, 2, 3, 8, 12, 16, 60},
      {7, 7, 7}};
  for (const auto& ranks : cases) {
    std::string text;
    CHECK(encode_members(ranks, 1000, text) == ranks.size());
    std::vector<std::int64_t> back;
    CHECK(decode_members(text, 1000, back) && back == ranks);
  }
  std::string text;
  CHECK(encode_members({0, 4, 8, 12, 13, 14}, 1000, text) == 6 && text == "0-12/4,13-14");
  CHECK(encode_members({0, 100, 7, 3}, 5, text) == 2 && text == "0,100");
  std::vector<std::int64_t> back;
  for (const char* bad :
       {",", "1,", "-1", "3-1", "0-9/0", "0-", "1 2", "99999999999", "0-5,x", "a"}) {
    CHECK(!decode_members(bad, 1000, back));
  }
  CHECK(!decode_members("0-2147483647", kMaxMembers, back) && back.size() <= kMaxMembers);
}

void a_page_reads_as_it_was_written() {
  const Opened page("plain.page");
  writer::set_phase(Phase::running);
  writer::set_in_call("new_group", "/home/me/train.py", 12, "main");
  writer::add_new_group(3, {0, 2, 4, 6}, "/home/me/train.py", 12, "main");
  writer::set_mark(5, "no_sync", "", 1, "/home/me/train.py", 14, "main");
  writer::set_mark(5, "no_sync", "", 2, "/home/me/train.py", 14, "main");
  writer::set_mark(kMarks, "no_sync", "", 1, "/home/me/train.py", 15, "main");
  writer::set_exception("ValueError", std::string(5000, 'x'), "/home/me/train.py", 13, "step");
  writer::define_group(2, "7", "dp", {0, 2, 4, 6}, 1, "gloo");
  writer::raise_enqueued(2, 9, 77);
  writer::raise_enqueued(2, 4, 78);
  EventData event = event_of(9, 2);
  event.op = writer::intern("all_reduce");
  event.site = writer::intern_site("/home/me/train.py", 40, "step");
  const std::uint64_t index = writer::add_event(event);
  CHECK(writer::intern("all_reduce") == event.op);
  writer::move_event(index, 2, OpState::done, false);
  writer::move_event(index, 2, OpState::failed, false);  // it was done: it stays so
  const PageView view = page.read();
  CHECK(view.identity.rank == 3 && view.identity.host.str() == "node-1");
  CHECK(view.phase.phase == static_cast<std::uint64_t>(Phase::running));
  CHECK(view.in_call.name.str() == "new_group" && view.in_call.line == 12);
  CHECK(view.new_groups.size() == 1 && view.new_groups[0].data.number == 3);
  CHECK((view.new_groups[0].ranks == std::vector<std::int64_t>{0, 2, 4, 6}));
  CHECK(view.new_groups[0].site.line == 12 && view.new_groups[0].data.ns > 0);
  CHECK(view.exception.message.str() == std::string(1024, 'x'));
  CHECK(view.groups.size() == 1 && view.groups[0].slot == 2 && view.groups[0].desc == "dp");
  CHECK((view.groups[0].ranks == std::vector<std::int64_t>{0, 2, 4, 6}));
  CHECK(view.groups[0].enqueued == 9 && view.groups[0].changed_ns == 77);
  CHECK(view.events.size() == 1 && view.events[0].op == "all_reduce");
  CHECK(view.events[0].site.line == 40 && view.events[0].site.function == "step");
  CHECK(view.events[0].data.state == static_cast<std::uint32_t>(OpState::done));
  CHECK(view.marks.size() == 1 && view.marks[0].data.kind.str() == "no_sync");
  CHECK(view.marks[0].data.count == 2 && view.marks[0].site.line == 14);
  CHECK(view.dropped == 0);
}

void the_last_calls_of_new_group_are_kept() {
  const Opened page("new_groups.page");
  std::vector<std::int64_t> irregular;
  for (std::int64_t rank = 0; rank < 1000; ++rank) irregular.push_back(rank * rank);
  for (std::int64_t number = 0; number < 40; ++number)
    writer::add_new_group(number, number == 39 ? irregular : std::vector<std::int64_t>{0, 1},
                          "a.py", 1, "f");
  const PageView view = page.read();
  CHECK(view.new_groups.size() == kNewGroups);
  CHECK(view.new_groups.front().data.number == 40 - static_cast<std::int64_t>(kNewGroups));
  CHECK(view.new_groups.front().ranks.size() == 2);
  CHECK(view.new_groups.back().ranks.empty());  // they do not fit
}

void events_of_a_slot_given_away_are_left_out() {
  const Opened page("reuse.page");
  writer::define_group(0, "0", "", {0, 1}, 0, "gloo");
  EventData event = event_of(1, 0);
  writer::add_event(event);
  CHECK(page.read().events.size() == 1);
  writer::define_group(0, "1", "", {0, 1}, 1, "gloo");
  CHECK(page.read().events.empty());
}

void splits_are_those_of_their_call() {
  const Opened page("splits.page");
  writer::define_group(0, "0", "", {0, 1}, 0, "gloo");
  for (std::uint64_t seq = 1; seq <= kSplitsKept + 2; ++seq) {
    EventData event = event_of(seq, 0);
    SplitsData splits{};
    splits.index = writer::add_event(event);
    splits.sends = 2;
    splits.sent[1] = static_cast<std::int32_t>(seq);
    // The call after it has none, and takes the place of none.
    if (seq != 2) writer::set_splits(splits);
  }
  const std::vector<EventView> events = page.read().events;
  CHECK(events.size() == kSplitsKept + 2);
  CHECK(events[0].sends.empty() && events[1].sends.empty());  // overwritten, and without
  CHECK((events[2].sends == std::vector<std::int64_t>{0, 3}) && events[2].receives.empty());
  CHECK((events.back().sends == std::vector<std::int64_t>{0, kSplitsKept + 2}));
}

using Checkpoints = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

// The checkpoints of a rank that issued so many calls, one of them from another line.
Checkpoints checkpoints_of(std::uint64_t calls, std::uint64_t odd, std::uint64_t step = 1) {
  const Opened page("agree.page");
  writer::intern_site("/somewhere/else.py", calls, "f");  // numbers are this process's own
  writer::define_group(1, "0", "", {0, 1}, 0, "gloo");
  for (std::uint64_t seq = 1; seq <= calls; seq += step) {
    EventData event = event_of(seq, 1);
    event.wire = writer::intern(seq % 2 == 0 ? "all_reduce" : "all_gather");
    event.site = writer::intern_site("/home/me/train.py", seq == odd ? 41 : 40, "step");
    event.ndim = 2;
    event.shape[0] = 3;
    event.shape[1] = 5;
    writer::agree(event, true);
  }
  return page.read().groups[0].checkpoints;
}

void checkpoints_tell_where_programs_differ() {
  CHECK(checkpoints_of(kCheckpointInterval, 0).empty());
  const Checkpoints first = checkpoints_of(kCheckpointInterval + 1, 0);
  CHECK(first.size() == 1 && first[0].first == kCheckpointInterval);
  CHECK(checkpoints_of(100, 0) == checkpoints_of(100, 0));
  CHECK(checkpoints_of(100, 0) == checkpoints_of(100, 99));  // not behind the last one
  const Checkpoints usual = checkpoints_of(100, 0);
  const Checkpoints odd = checkpoints_of(100, 50);
  CHECK(usual.size() == 3 && odd.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(usual[i].first == odd[i].first);
    CHECK((usual[i].second == odd[i].second) == (usual[i].first < 50));
  }
  CHECK(checkpoints_of(5000, 0).size() == kCheckpoints);
  // What C++ issues lies between: some numbers have no call here.
  CHECK(!checkpoints_of(5000, 0, 100).empty());
}

void a_bell_is_heard_before_during_and_after_the_wait() {
  const Opened page("bell.page");
  const std::string path = path_of("bell.page");
  CHECK(writer::wait_for_request(0, 0.01) == 0);
  CHECK(writer::ring_at(path.c_str()) == 0);
  CHECK(writer::wait_for_request(0, 3600) == 1);  // it rang before
  writer::ring();
  CHECK(writer::wait_for_request(1, 3600) == 2);
  for (std::uint32_t seen = 2; seen < 200; ++seen) {
    std::thread other([&path] { CHECK(writer::ring_at(path.c_str()) == 0); });
    CHECK(writer::wait_for_request(seen, 3600) == seen + 1);
    other.join();
  }
}

void a_bell_is_rung_at_pages_only() {
  CHECK(writer::ring_at(path_of("nothing").c_str()) == ENOENT);
  CHECK(writer::ring_at(g_directory.c_str()) != 0);
  const std::string path = path_of("garbage.page");
  for (const std::size_t size : {std::size_t{0}, std::size_t{100}, kPageBytes}) {
    const std::string bytes(size, 'x');
    std::FILE* file = std::fopen(path.c_str(), "wb");
    std::fwrite(bytes.data(), 1, size, file);
    std::fclose(file);
    CHECK(writer::ring_at(path.c_str()) == EINVAL);
  }
  unlink(path.c_str());
}

void full_tables_drop_and_count() {
  const Opened page("full.page");
  std::uint32_t last = 0;
  for (int i = 0; i < 6000; ++i)
    last = writer::intern_site("/a.py", static_cast<std::uint64_t>(i), "f");
  CHECK(last == kNone);
  for (int i = 0; i < 6000; ++i) last = writer::intern("string " + std::to_string(i));
  CHECK(last == kNone);
  CHECK(writer::intern(std::string(kStringBytes, 'x')) == kNone);
  CHECK(page.read().dropped > 0);
}

// Four threads write into the same ring and the same slots while this one reads
// the live mapping. A copy of it is readable too, though perhaps torn here and there.
void readers_see_no_torn_event() {
  const Opened page("torn.page");
  for (std::size_t slot = 0; slot < 4; ++slot)
    writer::define_group(slot, "g", "", {0, 1}, 0, "gloo");
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (std::uint32_t id = 0; id < 4; ++id) {
    threads.emplace_back([id, &stop] {
      for (std::uint64_t n = 1; !stop; ++n) {
        EventData event = event_of(n * 4 + id, id);
        const std::uint64_t index = writer::add_event(event);
        writer::count_entered(id);
        writer::raise_enqueued(id, n, n);
        writer::move_event(index, id, OpState::issued, true);
        writer::move_event(index, id, OpState::done, true);
        writer::count_left(id, 1);
        writer::set_phase(n % 2 == 0 ? Phase::running : Phase::init);
      }
    });
  }
  std::size_t seen = 0;
  std::size_t looks = 0;
  std::vector<unsigned char> copy(kPageBytes);
  // At least so many looks, and until all threads have been seen at work.
  for (; looks < 100 || seen < 5000; ++looks) {
    PageView view{};
    if (looks % 2 == 0) {
      std::memcpy(copy.data(), page.bytes(), kPageBytes);
      CHECK(read_page(copy.data(), copy.size(), true, view).empty());
    } else {
      view = page.read();
    }
    std::uint64_t previous = 0;
    for (const EventView& event : view.events) {
      if (looks % 2 == 1) CHECK(is_whole(event.data));
      CHECK(previous == 0 || event.data.index > previous);
      previous = event.data.index;
    }
    seen += view.events.size();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  const PageView view = page.read();
  CHECK(view.groups.size() == 4);
  for (const GroupView& group : view.groups) CHECK(group.entered == group.left);
}

void a_record_is_whole_or_says_that_it_is_not() {
  static Record<InCallData> record;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (std::uint64_t id = 0; id < 2; ++id) {
    threads.emplace_back([id, &stop] {
      for (std::uint64_t n = id; !stop; n += 2) {
        InCallData data{};
        data.line = n;
        data.file.set(std::string(n % 500, 'f'));
        record.write(data);
      }
    });
  }
  std::uint64_t changes = 0;
  for (std::uint64_t last = 0; changes < 500;) {
    InCallData data;
    if (!record.read(data)) continue;
    CHECK(data.file.str().size() == data.line % 500);
    changes += data.line != last ? 1 : 0;
    last = data.line;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

void moments_are_kept_by_their_number() {
  const Opened page("moments.page");
  writer::define_group(0, "0", "", {0, 1}, 0, "gloo");
  EventData event = event_of(1, 0);
  event.p2p = 1;
  writer::add_event(event);
  const std::uint64_t first = moments::next(1).number;
  CHECK(moments::next(moments::next(1).ns).number == first + 1);
  for (std::uint64_t number = 100; number < 200; ++number) moments::take(number);
  std::vector<MomentData> found;
  CHECK(read_moments(page.bytes(), kPageBytes, 0, found).empty());
  CHECK(found.size() == kMoments && found.front().number == 136 && found.back().number == 199);
  CHECK(found.back().thread == static_cast<std::uint32_t>(getpid()));
  CHECK(found.back().blocked_slot == 0 && found.back().blocked_peer == 1);
  CHECK(found.back().cpu_ns > 0);
  found.clear();
  CHECK(read_moments(page.bytes(), kPageBytes, 198, found).empty() && found.size() == 1);
  CHECK(!read_moments(page.bytes(), kPageBytes - 1, 0, found).empty());
}

void a_forked_child_writes_nothing() {
  const Opened page("fork.page");
  writer::define_group(0, "0", "", {0}, 0, "gloo");
  CHECK(writer::start_heartbeat(1, true) == 0);
  writer::stop_heartbeat();
  const std::vector<unsigned char> before(page.bytes(), page.bytes() + kPageBytes);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    EventData event = event_of(1, 0);
    const bool silent = !writer::is_open() && writer::add_event(event) == writer::kNoEvent &&
                        writer::intern("x") == kNone && writer::count_swallowed() == 0;
    writer::set_phase(Phase::raised);
    writer::beat("ValueError", true, true);
    writer::count_entered(0);
    // It may become a rank of its own.
    const std::string own = path_of("child.page");
    const bool opened = writer::open(own.c_str(), {}) == 0;
    unlink(own.c_str());
    _exit(silent && opened ? 0 : 1);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(std::memcmp(before.data(), page.bytes(), kPageBytes) == 0);
}

// What a forked child that becomes a rank has left on its page when std::terminate aborted it.
ExceptionData left_by(void (*ends)()) {
  const std::string path = path_of("aborted.page");
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    std::freopen("/dev/null", "w", stderr);
    if (writer::open(path.c_str(), {}) != 0) _exit(1);
    ends();
    _exit(2);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  unlink(path.c_str());
  PageView view{};
  CHECK(read_page(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), true, view)
            .empty());
  return view.exception;
}

void the_exception_that_aborts_a_process_stays_on_its_page() {
  const ExceptionData thrown =
      left_by([] { std::thread([] { throw std::out_of_range("36 vs 4"); }).join(); });
  CHECK(thrown.ns > 0 && thrown.in_cpp == 1 && thrown.file.str().empty());
  CHECK(thrown.type.str() == "std::out_of_range" && thrown.message.str() == "36 vs 4");
  const ExceptionData number = left_by([] { std::thread([] { throw 7; }).join(); });
  CHECK(number.in_cpp == 1 && number.type.str() == "int" && number.message.str().empty());
  const ExceptionData none = left_by([] { std::terminate(); });
  CHECK(none.ns > 0 && none.in_cpp == 1 && none.type.str().empty());
  // An exception of Python's came first: what its end aborts says less.
  const ExceptionData first = left_by([] {
    writer::set_exception("ValueError", "bad batch", "train.py", 13, "step");
    std::terminate();
  });
  CHECK(first.in_cpp == 0 && first.type.str() == "ValueError");
  // A handler that the program sets later replaces this one.
  CHECK(left_by([] {
          std::set_terminate([] { std::abort(); });
          std::terminate();
        }).ns == 0);
}

constexpr int kHandled = 7;

void a_handler_that_was_there_before_is_called() {
  const std::string path = path_of("aborted.page");
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    execl("/proc/self/exe", "core_test", path.c_str(), "terminate", nullptr);
    _exit(1);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) &&
        WEXITSTATUS(status) == kHandled);
  CHECK(unlink(path.c_str()) == 0);
}

// In a process that has no handler yet: terminate with one of its own.
[[noreturn]] void terminate_with_a_handler(const char* page) {
  // It never asks what the exception says, and so is it not asked for the page.
  struct Unasked : std::exception {
    const char* what() const noexcept override { _exit(1); }
  };
  std::set_terminate([] { _exit(kHandled); });
  if (writer::open(page, {}) != 0) _exit(1);
  std::thread([] { throw Unasked{}; }).join();
  _exit(1);
}

void a_second_page_or_a_taken_name_is_refused() {
  const Opened page("first.page");
  CHECK(writer::open(path_of("second.page").c_str(), {}) == EALREADY);
  writer::close();
  CHECK(writer::open(path_of("first.page").c_str(), {}) == EEXIST);
  CHECK(writer::open("/nowhere/at/all.page", {}) == ENOENT);
}

void no_bytes_make_the_reader_do_wrong() {
  const Opened page("bytes.page");
  for (std::size_t slot = 0; slot < kMaxGroups; ++slot) {
    writer::define_group(slot, "g", "d", {0, 1, 2, 3, 8, 12, 16}, 0, "gloo");
  }
  for (std::uint64_t n = 0; n < 2 * kRingEvents; ++n) {
    EventData event = event_of(n, static_cast<std::uint32_t>(n % kMaxGroups));
    event.op = writer::intern("op" + std::to_string(n % 7));
    event.site = writer::intern_site("/a/b.py", n % 50, "f");
    writer::add_event(event);
  }
  std::mt19937_64 random(20240607);
  std::size_t understood = 0;
  for (int round = 0; round < 400; ++round) {
    // Exactly as long as it says, so that a step beyond its end is found.
    std::vector<unsigned char> bytes(page.bytes(), page.bytes() + kPageBytes);
    const std::size_t changes = 1 + random() % 4000;
    for (std::size_t i = 0; i < changes; ++i) {
      const std::size_t at = 24 + random() % (kPageBytes - 24);
      bytes[at] = static_cast<unsigned char>(random() % 3 == 0 ? 0xff : random());
    }
    PageView view{};
    if (read_page(bytes.data(), bytes.size(), true, view).empty()) ++understood;
    std::vector<MomentData> moments;
    read_moments(bytes.data(), bytes.size(), 0, moments);
    CHECK(moments.size() <= kMoments);
    CHECK(view.groups.size() <= kMaxGroups && view.events.size() <= kRingEvents);
    bytes.resize(random() % kPageBytes);
    bytes.shrink_to_fit();
    CHECK(!read_page(bytes.data(), bytes.size(), true, view).empty());
  }
  CHECK(understood > 0);
  std::vector<unsigned char> shifted(kPageBytes + 3);
  std::memcpy(shifted.data() + 3, page.bytes(), kPageBytes);
  PageView view{};
  CHECK(read_page(shifted.data() + 3, kPageBytes, true, view).empty());
  CHECK(view.events.size() == kRingEvents);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3) terminate_with_a_handler(argv[1]);
  if (argc != 2) return 2;
  g_directory = argv[1];
  members_survive_the_way_through_text();
  a_page_reads_as_it_was_written();
  the_last_calls_of_new_group_are_kept();
  events_of_a_slot_given_away_are_left_out();
  splits_are_those_of_their_call();
  checkpoints_tell_where_programs_differ();
  a_bell_is_heard_before_during_and_after_the_wait();
  a_bell_is_rung_at_pages_only();
  full_tables_drop_and_count();
  readers_see_no_torn_event();
  a_record_is_whole_or_says_that_it_is_not();
  moments_are_kept_by_their_number();
  a_forked_child_writes_nothing();
  the_exception_that_aborts_a_process_stays_on_its_page();
  a_handler_that_was_there_before_is_called();
  a_second_page_or_a_taken_name_is_refused();
  no_bytes_make_the_reader_do_wrong();
  std::puts("good");
  return 0;
}
