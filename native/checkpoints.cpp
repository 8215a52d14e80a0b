// A rolling hash of each group's collectives, kept at every kCheckpointInterval-th of them.

#include "mapping.hpp"

namespace hangwatch::writer {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// Under the GIL, as calls are recorded.
struct Rolling {
  std::uint64_t hash;
  std::uint64_t checkpoints;  // how many lie behind it
};
Rolling g_rolling[kMaxGroups];

// One step of splitmix64 (Steele, Lea and Flood 2014).
std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) + 0x9e37'79b9'7f4a'7c15;
  hash = (hash ^ (hash >> 30)) * 0xbf58'476d'1ce4'e5b9;
  return hash ^ (hash >> 27);
}

}  // namespace

void forget_checkpoints(Page* page, std::size_t slot) noexcept {
  g_rolling[slot] = Rolling{0, 0};
  for (Checkpoint& checkpoint : page->groups[slot].checkpoints) checkpoint.seq.store(0, kRelaxed);
}

void agree(const EventData& event, bool sized) noexcept {
  Page* p = page();
  if (p == nullptr || !has_room(event.slot) || event.seq == 0) return;
  Rolling& rolling = g_rolling[event.slot];
  const std::uint64_t behind = (event.seq - 1) / kCheckpointInterval;
  if (behind > rolling.checkpoints) {
    Checkpoint& checkpoint = p->groups[event.slot].checkpoints[behind % kCheckpoints];
    checkpoint.seq.store(0, kRelaxed);
    std::atomic_thread_fence(std::memory_order_release);
    checkpoint.hash.store(rolling.hash, kRelaxed);
    checkpoint.seq.store(behind * kCheckpointInterval, std::memory_order_release);
    rolling.checkpoints = behind;
  }
  std::uint64_t call = mixed(event.seq, string_hash(event.wire) ^ site_hash(event.site));
  if (sized) {
    std::uint64_t elements = 1;
    for (std::uint16_t i = 0; i < event.ndim && i < kMaxDims; ++i) {
      elements *= static_cast<std::uint64_t>(event.shape[i]);
    }
    call = mixed(call, string_hash(event.dtype) ^ elements);
  }
  rolling.hash = mixed(rolling.hash, call);
}

}  // namespace hangwatch::writer
