#include "reader.hpp"

#include <algorithm>
#include <memory>

namespace hangwatch {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

std::string string_at(const Page& page, std::uint64_t index) {
  const std::uint64_t count =
      std::min<std::uint64_t>(page.strings.count.load(std::memory_order_acquire), kMaxStrings);
  if (index >= count) return {};
  const std::uint64_t ref = page.strings.refs[index].load(kRelaxed);
  const std::uint64_t offset = ref >> 32;
  const std::uint64_t length = ref & 0xffff'ffff;
  if (offset > kStringBytes || length > kStringBytes - offset) return {};
  return std::string(page.strings.bytes + offset, length);
}

SiteView site_at(const Page& page, std::uint32_t index) {
  const std::uint64_t count =
      std::min<std::uint64_t>(page.sites.count.load(std::memory_order_acquire), kMaxSites);
  if (index >= count) return {};
  const std::uint64_t names = page.sites.names[index].load(kRelaxed);
  return {string_at(page, names >> 32), string_at(page, names & 0xffff'ffff),
          page.sites.lines[index].load(kRelaxed)};
}

// The last sequence number up to which the GPU has come to all that it was asked for, -1 where
// it was asked for none. Of a beacon that stands for several numbers the least is taken.
std::int64_t come_to(const Beacon (&beacons)[kBeacons]) {
  std::uint64_t last = 0;
  std::uint64_t open = UINT64_MAX;
  for (const Beacon& beacon : beacons) {
    const std::uint64_t asked = beacon.asked.load(std::memory_order_acquire);
    const std::uint64_t first = beacon.first.load(kRelaxed);
    const std::uint64_t seen = beacon.seen.load(kRelaxed);
    last = std::max(last, asked);
    if (seen >= asked) continue;
    const std::uint64_t next = seen < first ? first : seen + kBeacons;
    open = std::min({open, next, asked});
  }
  if (last == 0 || last > INT64_MAX) return -1;
  return static_cast<std::int64_t>(open == UINT64_MAX ? last : open == 0 ? 0 : open - 1);
}

void read_groups(const Page& page, PageView& view, std::uint32_t (&generations)[kMaxGroups]) {
  std::size_t room = kMaxMembersOfPage;
  const std::uint64_t slots = std::min<std::uint64_t>(page.slots.load(kRelaxed), kMaxGroups);
  for (std::size_t slot = 0; slot < slots; ++slot) {
    const GroupSlot& source = page.groups[slot];
    GroupData data;
    if (!source.data.read(data) || data.defined != 1) continue;
    generations[slot] = data.generation;
    GroupView group{};
    group.slot = slot;
    group.name = data.name.str();
    group.desc = data.desc.str();
    group.backend = data.backend.str();
    group.index = data.index;
    group.made_ns = data.made_ns;
    group.ended_ns = data.ended_ns;
    group.member_count = data.member_count;
    const bool whole = decode_members(data.members.str(), std::min(room, kMaxMembers), group.ranks);
    group.truncated = !whole || data.truncated != 0 || group.ranks.size() != data.member_count;
    room -= group.ranks.size();
    group.enqueued = source.enqueued.load(kRelaxed);
    group.completed = source.completed.load(kRelaxed);
    const bool told = view.beacons_off.empty();
    const BeaconSlot& beacons = page.beacons[slot];
    group.reached = told ? come_to(beacons.of[static_cast<std::size_t>(BeaconKind::reached)]) : -1;
    group.passed = told ? come_to(beacons.of[static_cast<std::size_t>(BeaconKind::passed)]) : -1;
    group.entered = source.entered.load(kRelaxed);
    group.left = source.left.load(kRelaxed);
    group.p2p = source.p2p.load(kRelaxed);
    group.changed_ns = source.changed_ns.load(kRelaxed);
    for (const Checkpoint& checkpoint : source.checkpoints) {
      const std::uint64_t seq = checkpoint.seq.load(std::memory_order_acquire);
      const std::uint64_t hash = checkpoint.hash.load(kRelaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (seq != 0 && seq == checkpoint.seq.load(kRelaxed)) {
        group.checkpoints.emplace_back(seq, hash);
      }
    }
    view.groups.push_back(std::move(group));
  }
}

void read_new_groups(const Page& page, PageView& view) {
  std::size_t room = kMaxMembersOfPage;
  const std::uint64_t next = page.next_new_group.load(std::memory_order_acquire);
  for (std::uint64_t index = next - std::min<std::uint64_t>(next, kNewGroups); index < next;
       ++index) {
    NewGroupView call{};
    if (!page.new_groups[index % kNewGroups].read(call.data) || call.data.index != index ||
        call.data.ns == 0) {
      continue;
    }
    const std::size_t most = std::min(room, kMaxMembers);
    if (!decode_members(call.data.members.str(), most, call.ranks)) call.ranks.clear();
    room -= call.ranks.size();
    call.site = site_at(page, static_cast<std::uint32_t>(call.data.site));
    view.new_groups.push_back(std::move(call));
  }
}

void read_marks(const Page& page, PageView& view) {
  for (const Record<MarkData>& record : page.marks) {
    MarkView mark{};
    if (!record.read(mark.data) || mark.data.ns == 0) continue;
    mark.site = site_at(page, static_cast<std::uint32_t>(mark.data.site));
    view.marks.push_back(std::move(mark));
  }
}

void read_splits(const Page& page, EventView& event) {
  const Record<SplitsData>& record = page.splits[event.data.index % kSplitsKept];
  // Nearly all others are of another call: they are not read.
  if (record.word(offsetof(SplitsData, index)) != event.data.index) return;
  SplitsData splits;
  if (!record.read(splits) || splits.index != event.data.index) return;
  const auto sends = std::min<std::size_t>(splits.sends, kMaxSplits);
  const auto receives = std::min<std::size_t>(splits.receives, kMaxSplits);
  event.sends.assign(splits.sent, splits.sent + sends);
  event.receives.assign(splits.received, splits.received + receives);
}

void read_events(const Page& page, PageView& view, const std::uint32_t (&generations)[kMaxGroups]) {
  const std::uint64_t next = page.next_event.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < kRingEvents; ++i) {
    EventView event;
    EventData& data = event.data;
    // issued_ns is 0 in a slot of the ring that was never written. An event
    // whose slot has been given to another group since belongs to no group.
    if (!page.events[i].record.read(data) || data.issued_ns == 0 || data.index >= next ||
        data.index % kRingEvents != i || data.slot >= kMaxGroups || data.state >= kOpStates ||
        data.generation == 0 || data.generation != generations[data.slot]) {
      continue;
    }
    data.ndim = std::min<std::uint16_t>(data.ndim, kMaxDims);
    event.op = string_at(page, data.op);
    event.wire = string_at(page, data.wire);
    event.dtype = string_at(page, data.dtype);
    event.site = site_at(page, data.site);
    read_splits(page, event);
    view.events.push_back(std::move(event));
  }
  std::sort(view.events.begin(), view.events.end(),
            [](const EventView& a, const EventView& b) { return a.data.index < b.data.index; });
}

// A page at any bytes, be it a copy of them.
class Opened {
 public:
  Opened(const unsigned char* data, std::size_t size) {
    std::uint64_t head[3];
    if (size < sizeof(head)) {
      why = "not a rank page: only " + std::to_string(size) + " bytes";
      return;
    }
    std::memcpy(head, data, sizeof(head));
    if (head[0] != kMagic) {
      why = "not a rank page: it does not begin with the magic number";
    } else if (head[1] != kVersion) {
      why = "rank page of version " + std::to_string(head[1]) + ", this hangwatch reads version " +
            std::to_string(kVersion);
    } else if (head[2] != kPageBytes || size < kPageBytes) {
      why = "truncated rank page: " + std::to_string(size) + " bytes of " +
            std::to_string(kPageBytes);
    } else {
      // A mapping is aligned; a slice of bytes may not be, and is no live page.
      if (reinterpret_cast<std::uintptr_t>(data) % alignof(Page) != 0) {
        copy_.reset(new std::uint64_t[kPageBytes / sizeof(std::uint64_t)]);
        std::memcpy(copy_.get(), data, kPageBytes);
        data = reinterpret_cast<const unsigned char*>(copy_.get());
      }
      page = reinterpret_cast<const Page*>(data);
    }
  }
  const Page* page = nullptr;
  std::string why;  // it is none

 private:
  std::unique_ptr<std::uint64_t[]> copy_;
};

}  // namespace

std::string read_page(const unsigned char* data, std::size_t size, bool with_events,
                      PageView& view) {
  const Opened opened(data, size);
  if (opened.page == nullptr) return opened.why;
  const Page& page = *opened.page;
  if (!page.identity.read(view.identity))
    return "rank page whose identity was not written to its end";
  // A writer that was ended amid one of these leaves it torn for good. What is
  // there is still worth reading, field by field.
  page.phase.read(view.phase);
  if (view.phase.phase >= kPhases) return "rank page with an unknown phase";
  page.in_call.read(view.in_call);
  page.exception.read(view.exception);
  NoteData note;
  page.handling.read(note);
  view.handling = note.text.str();
  page.disarmed.read(note);
  view.disarmed = note.text.str();
  page.torch_lacks.read(note);
  view.torch_lacks = note.text.str();
  page.beacons_off.read(note);
  view.beacons_off = note.text.str();
  view.heartbeat_ns = page.heartbeat_ns.load(kRelaxed);
  view.gil_ns = page.gil_ns.load(kRelaxed);
  view.pending_since_ns = page.pending_since_ns.load(kRelaxed);
  view.swallowed = page.swallowed.load(kRelaxed);
  view.dropped = page.dropped.load(kRelaxed);
  view.groups_left_out = page.groups_left_out.load(kRelaxed);
  std::uint32_t generations[kMaxGroups] = {};
  read_groups(page, view, generations);
  if (!with_events) return {};
  read_new_groups(page, view);
  read_marks(page, view);
  read_events(page, view, generations);
  return {};
}

std::string read_moments(const unsigned char* data, std::size_t size, std::uint64_t after,
                         std::vector<MomentData>& moments) {
  const Opened opened(data, size);
  if (opened.page == nullptr) return opened.why;
  for (std::size_t i = 0; i < kMoments; ++i) {
    MomentData moment;
    if (!opened.page->moments[i].read(moment) || moment.ns == 0 || moment.number <= after ||
        moment.number % kMoments != i) {
      continue;
    }
    moment.count = std::min<std::uint32_t>(moment.count, kMomentGroups);
    moments.push_back(moment);
  }
  std::sort(moments.begin(), moments.end(),
            [](const MomentData& a, const MomentData& b) { return a.number < b.number; });
  return {};
}

}  // namespace hangwatch
