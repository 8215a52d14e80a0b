// Reads pages that are corrupted or being written, under sanitizers (kinds/page.py).
//
//   pages layout                      the regions of a page: name, offset, bytes
//   pages corrupt DIR SEED ROUNDS     copies with flipped bits, noise, zeros, and cut short
//   pages scribble DIR SEED ROUNDS    a page into which a thread writes noise, and the rank goes on
//   pages torn DIR SEED ROUNDS        a page that its threads write
//
// Prints "good" at its end. What a sanitizer finds ends it otherwise.

#include <cstddef>
#include <cstdint>
#include <random>
#include <thread>

#include "../../../native/mapping.hpp"
#include "../../../native/tests/opened.hpp"

namespace {

using Random = std::mt19937_64;

struct Region {
  const char* name;
  std::size_t offset;
  std::size_t bytes;
};

#define REGION(member) {#member, offsetof(Page, member), sizeof(Page::member)}
const Region kRegions[] = {
    {"head", 0, offsetof(Page, heartbeat_ns)},
    {"clocks", offsetof(Page, heartbeat_ns),
     offsetof(Page, identity) - offsetof(Page, heartbeat_ns)},
    REGION(identity),
    REGION(phase),
    REGION(in_call),
    REGION(exception),
    REGION(handling),
    REGION(disarmed),
    REGION(beacons_off),
    REGION(new_groups),
    REGION(events),
    REGION(sites),
    REGION(strings),
    REGION(groups),
    REGION(beacons),
};
#undef REGION

void layout() {
  for (const Region& region : kRegions)
    std::printf("%s %zu %zu\n", region.name, region.offset, region.bytes);
  std::printf("group 0 %zu\npage 0 %zu\n", sizeof(GroupSlot), kPageBytes);
}

// So many that there is always one that the page does not have yet.
constexpr std::uint64_t kNames = 100'000;

// What a rank writes in a step, with numbers that grow.
void step(std::uint64_t n, std::size_t slot) {
  EventData event{};
  event.slot = static_cast<std::uint32_t>(slot);
  event.issued_ns = n + 1;
  event.seq = n;
  event.op = event.wire = writer::intern("all_reduce " + std::to_string(n % kNames));
  event.dtype = writer::intern("float32");
  event.site = writer::intern_site("/home/me/train.py", n % kNames, "step");
  event.ndim = kMaxDims;
  const std::uint64_t index = writer::add_event(event);
  writer::count_entered(slot);
  writer::raise_enqueued(slot, n, n);
  writer::move_event(index, slot, OpState::issued, true);
  writer::move_event(index, slot, OpState::done, true);
  writer::count_left(slot, 1);
  writer::agree(event, true);
  if (n % 16 == 0) {
    writer::set_in_call("new_group", "/home/me/train.py", n, "main");
    writer::set_mark(n % kMarks, "no_sync", "", n, "/home/me/train.py", n, "main");
    writer::add_new_group(static_cast<std::int64_t>(n), {0, 1, 4}, "/home/me/train.py", n, "main");
  }
  if (n % 32 == 0) writer::set_exception("ValueError", std::string(n % 900, 'x'), "a.py", n, "f");
}

void begin(std::size_t groups) {
  for (std::size_t slot = 0; slot < groups; ++slot)
    CHECK(writer::define_group(slot, "g" + std::to_string(slot), "desc", {0, 1, 2, 3, 8, 12}, 0,
                               "gloo"));
  for (std::uint64_t n = 1; n < 400; ++n) step(n, n % groups);
}

void corrupt_once(std::vector<unsigned char>& bytes, Random& random) {
  const std::size_t whole = std::size(kRegions);
  const Region& region = kRegions[random() % whole];
  const std::size_t at = region.offset + random() % region.bytes;
  const std::size_t room = std::min<std::size_t>(bytes.size() - at, 1 + random() % 512);
  switch (random() % 4) {
    case 0:
      bytes[at] ^= static_cast<unsigned char>(1u << random() % 8);
      break;
    case 1:
      for (std::size_t i = 0; i < room; ++i) bytes[at + i] = static_cast<unsigned char>(random());
      break;
    case 2:
      std::memset(bytes.data() + at, random() % 2 == 0 ? 0 : 0xff, room);
      break;
    default:  // words that a reader takes for counts and offsets
      for (std::size_t i = at / 8 * 8; i + 8 <= at + room; i += 8) {
        const std::uint64_t value = (std::uint64_t{1} << random() % 64) - random() % 3;
        std::memcpy(bytes.data() + i, &value, 8);
      }
  }
}

// Its own memory of just that size, so that a look beyond it is found.
void read_copy(const std::vector<unsigned char>& bytes, std::size_t size, std::size_t shift) {
  std::vector<unsigned char> exact(size + shift);
  std::memcpy(exact.data() + shift, bytes.data(), size);
  exact.shrink_to_fit();
  PageView view{};
  read_page(exact.data() + shift, size, true, view);
  CHECK(view.events.size() <= kRingEvents && view.groups.size() <= kMaxGroups);
}

void corrupt(Random& random, std::uint64_t rounds) {
  const Opened page("corrupt.page");
  begin(5);
  std::atomic<bool> stop{false};
  std::thread other([&stop] {
    for (std::uint64_t n = 400; !stop; ++n) step(n, n % 5);
  });
  std::vector<unsigned char> bytes(kPageBytes);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    std::memcpy(bytes.data(), page.bytes(), kPageBytes);
    for (std::uint64_t i = random() % 20; i > 0; --i) corrupt_once(bytes, random);
    const std::size_t size = random() % 4 == 0 ? random() % kPageBytes : kPageBytes;
    read_copy(bytes, size, random() % 2);
  }
  stop = true;
  other.join();
}

void scribble(Random& random, std::uint64_t rounds) {
  const Opened page("scribble.page");
  begin(5);
  auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(writer::page());
  const std::uint64_t seed = random();
  std::atomic<bool> stop{false};
  // The head stays, or the reader would look no further.
  std::thread other([words, seed, &stop] {
    Random own(seed);
    while (!stop) {
      // As often the counts at the beginning of a region as all the rest of it.
      const Region& region = kRegions[1 + own() % (std::size(kRegions) - 1)];
      const std::size_t room = own() % 2 == 0 ? 32 : region.bytes;
      const std::size_t at = (region.offset + own() % room) / 8;
      words[at].store(own() >> own() % 64, std::memory_order_relaxed);
    }
  });
  for (std::uint64_t round = 0; round < rounds; ++round) {
    for (std::uint64_t n = 0; n < 20; ++n) step(400 + round * 20 + n, n % 5);
    PageView view{};
    read_page(page.bytes(), kPageBytes, true, view);
    CHECK(view.events.size() <= kRingEvents && view.groups.size() <= kMaxGroups);
  }
  stop = true;
  other.join();
}

// The reader looks by the mapping that is written, so that a race is seen as one.
void torn(std::uint64_t rounds) {
  const Opened page("torn.page");
  begin(4);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (std::size_t id = 0; id < 2; ++id) {
    threads.emplace_back([id, &stop] {
      for (std::uint64_t n = 400; !stop; ++n) step(n, id);
    });
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(writer::page());
  for (std::uint64_t round = 0; round < rounds; ++round) {
    PageView view{};
    CHECK(read_page(bytes, kPageBytes, true, view).empty());
    for (const EventView& event : view.events) CHECK(event.data.issued_ns == event.data.seq + 1);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "layout") {
    layout();
    return 0;
  }
  if (argc != 5) return 2;
  g_directory = argv[2];
  Random random(std::strtoull(argv[3], nullptr, 10));
  const std::uint64_t rounds = std::strtoull(argv[4], nullptr, 10);
  if (mode == "corrupt") corrupt(random, rounds);
  if (mode == "scribble") scribble(random, rounds);
  if (mode == "torn") torn(rounds);
  std::puts("good");
  return 0;
}
