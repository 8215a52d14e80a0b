#include "writer.hpp"

#include <algorithm>
#include <new>

#include "mapping.hpp"

namespace hangwatch::writer {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// The word of an event that says how it stands.
std::uint64_t words_of(OpState state, bool is_async) noexcept {
  static_assert(offsetof(EventData, is_async) == offsetof(EventData, state) + 4);
  const std::uint32_t halves[2] = {static_cast<std::uint32_t>(state), is_async};
  std::uint64_t word = 0;
  std::memcpy(&word, halves, sizeof(word));
  return word;
}

// 32 bits of a record, by their offset.
template <class T>
std::uint32_t half_word(const Record<T>& record, std::size_t offset) noexcept {
  const std::uint64_t word = record.word(offset);
  std::uint32_t half = 0;
  std::memcpy(&half, reinterpret_cast<const char*>(&word) + offset % sizeof(word), sizeof(half));
  return half;
}

// Its memory, or nullptr where it has none.
GroupSlot* at(Page* p, std::size_t slot) noexcept {
  return p != nullptr && has_room(slot) ? &p->groups[slot] : nullptr;
}

}  // namespace

void set_identity(std::int32_t rank, std::int32_t world_size, std::string_view store_host,
                  std::int32_t store_port) noexcept {
  Page* p = page();
  std::uint64_t version = 0;
  if (p == nullptr) return;
  IdentityData data;
  if (!p->identity.read(data) || !p->identity.lock(version)) return dropped(p);
  data.rank = rank;
  data.world_size = world_size;
  data.store_host.set(store_host);
  data.store_port = store_port;
  p->identity.fill(data);
  p->identity.unlock(version);
}

void set_phase(Phase phase) noexcept {
  Page* p = page();
  if (p == nullptr) return;
  if (!p->phase.write(PhaseData{now_ns(), static_cast<std::uint64_t>(phase)})) dropped(p);
}

void set_in_call(std::string_view name, std::string_view file, std::uint64_t line,
                 std::string_view function) noexcept {
  Page* p = page();
  if (p == nullptr) return;
  InCallData data{};
  if (!name.empty()) {
    data.ns = now_ns();
    data.line = line;
    data.name.set(name);
    data.file.set(file);
    data.function.set(function);
  }
  if (!p->in_call.write(data)) dropped(p);
}

void add_new_group(std::int64_t number, const std::vector<std::int64_t>& ranks,
                   std::string_view file, std::uint64_t line, std::string_view function) noexcept
    try {
  Page* p = page();
  if (p == nullptr) return;
  std::string members;
  const bool whole = encode_members(ranks, sizeof(NewGroupData::members), members) == ranks.size();
  NewGroupData data{};
  data.ns = now_ns();
  data.number = number;
  data.site = intern_site(file, line, function);
  if (whole) data.members.set(members);
  data.index = p->next_new_group.fetch_add(1, kRelaxed);
  if (!p->new_groups[data.index % kNewGroups].write(data)) dropped(p);
} catch (const std::bad_alloc&) {
}

void set_mark(std::size_t index, std::string_view kind, std::string_view text, std::uint64_t count,
              std::string_view file, std::uint64_t line, std::string_view function) noexcept {
  Page* p = page();
  if (p == nullptr || index >= kMarks) return;
  MarkData data{};
  data.ns = now_ns();
  data.count = count;
  data.site = intern_site(file, line, function);
  data.kind.set(kind);
  data.text.set(text);
  if (!p->marks[index].write(data)) dropped(p);
}

void set_exception(std::string_view type, std::string_view message, std::string_view file,
                   std::uint64_t line, std::string_view function) noexcept {
  Page* p = page();
  if (p == nullptr) return;
  ExceptionData data{};
  data.ns = now_ns();
  data.line = line;
  data.type.set(type);
  data.message.set(message);
  data.file.set(file);
  data.function.set(function);
  if (!p->exception.write(data)) dropped(p);
}

void set_uncaught(std::string_view type, std::string_view message) noexcept {
  Page* p = page();
  ExceptionData data{};
  if (p == nullptr || !p->exception.read(data) || data.ns != 0) return;
  data.ns = now_ns();
  data.in_cpp = 1;
  data.type.set(type);
  data.message.set(message);
  if (!p->exception.write(data)) dropped(p);
}

void set_disarmed(std::string_view reason) noexcept {
  Page* p = page();
  if (p == nullptr) return;
  NoteData data{};
  data.text.set(reason);
  if (!p->disarmed.write(data)) dropped(p);
}

void set_torch_lacks(std::string_view what) noexcept {
  Page* p = page();
  if (p == nullptr) return;
  NoteData data{};
  data.text.set(what);
  if (!p->torch_lacks.write(data)) dropped(p);
}

void set_beacons(std::string_view reason) noexcept {
  Page* p = page();
  if (p == nullptr) return;
  NoteData data{};
  data.text.set(reason);
  if (!p->beacons_off.write(data)) dropped(p);
}

std::uint64_t count_swallowed() noexcept {
  Page* p = page();
  return p == nullptr ? 0 : p->swallowed.fetch_add(1, kRelaxed) + 1;
}

void beat(std::string_view handling, bool pending, bool pending_changed) noexcept {
  Page* p = page();
  if (p == nullptr) return;
  const std::uint64_t now = now_ns();
  NoteData before;
  NoteData data{};
  data.text.set(handling);
  p->handling.read(before);
  if (std::memcmp(&before, &data, sizeof(data)) != 0 && !p->handling.write(data)) dropped(p);
  if (!pending) {
    p->pending_since_ns.store(0, kRelaxed);
  } else if (pending_changed || p->pending_since_ns.load(kRelaxed) == 0) {
    p->pending_since_ns.store(now, kRelaxed);
  }
  p->gil_ns.store(now, kRelaxed);
}

bool define_group(std::size_t slot, std::string_view name, std::string_view desc,
                  const std::vector<std::int64_t>& ranks, std::uint32_t index,
                  std::string_view backend) noexcept try {
  Page* p = page();
  if (p == nullptr || slot >= kMaxGroups || !make_room(p, slot)) return false;
  GroupSlot& group = p->groups[slot];
  std::string members;  // before the record is locked: it may throw
  const bool whole = encode_members(ranks, sizeof(GroupData::members), members) == ranks.size();
  GroupData data;
  std::uint64_t version = 0;
  if (!group.data.read(data) || !group.data.lock(version)) {
    dropped(p);
    return false;
  }
  const std::uint64_t now = now_ns();
  const std::uint32_t generation = data.generation + 1;
  data = GroupData{};
  data.made_ns = now;
  data.defined = 1;
  data.generation = generation;
  data.index = index;
  data.member_count = static_cast<std::uint32_t>(ranks.size());
  data.name.set(name);
  data.desc.set(desc);
  data.backend.set(backend);
  data.truncated = whole ? 0 : 1;
  data.members.set(members);
  group.enqueued.store(0, kRelaxed);
  group.completed.store(-1, kRelaxed);
  group.entered.store(0, kRelaxed);
  group.left.store(0, kRelaxed);
  group.p2p.store(0, kRelaxed);
  forget_checkpoints(p, slot);
  for (auto& kind : p->beacons[slot].of) {
    for (Beacon& beacon : kind) {
      for (auto* word : {&beacon.asked, &beacon.first, &beacon.seen}) word->store(0, kRelaxed);
    }
  }
  group.changed_ns.store(now, kRelaxed);
  group.generation.store(generation, kRelaxed);
  group.data.fill(data);
  group.data.unlock(version);
  return true;
} catch (const std::bad_alloc&) {
  if (Page* p = page()) dropped(p);
  return false;
}

void set_groups_left_out(std::uint64_t groups) noexcept {
  if (Page* p = page()) p->groups_left_out.store(groups, kRelaxed);
}

void retire_group(std::size_t slot) noexcept {
  Page* p = page();
  GroupSlot* group = at(p, slot);
  if (group == nullptr) return;
  Record<GroupData>& record = group->data;
  std::uint64_t version = 0;
  if (!record.lock(version)) return dropped(p);
  record.set_word(offsetof(GroupData, ended_ns), now_ns());
  record.unlock(version);
}

void raise_enqueued(std::size_t slot, std::uint64_t seq, std::uint64_t now) noexcept {
  GroupSlot* group = at(page(), slot);
  if (group == nullptr) return;
  std::uint64_t seen = group->enqueued.load(kRelaxed);
  while (seen < seq) {
    if (group->enqueued.compare_exchange_weak(seen, seq, kRelaxed)) {
      group->changed_ns.store(now, kRelaxed);
      return;
    }
  }
}

void raise_completed(std::size_t slot, std::int64_t seq) noexcept {
  GroupSlot* group = at(page(), slot);
  if (group == nullptr) return;
  std::int64_t seen = group->completed.load(kRelaxed);
  while (seen < seq && !group->completed.compare_exchange_weak(seen, seq, kRelaxed)) {
  }
}

void lower_enqueued(std::size_t slot, std::uint64_t from, std::uint64_t to) noexcept {
  GroupSlot* group = at(page(), slot);
  if (group == nullptr || to > from) return;
  group->enqueued.compare_exchange_strong(from, to, kRelaxed);
}

void count_entered(std::size_t slot) noexcept {
  if (GroupSlot* group = at(page(), slot)) group->entered.fetch_add(1, kRelaxed);
}

void count_left(std::size_t slot, std::uint64_t calls) noexcept {
  if (GroupSlot* group = at(page(), slot)) group->left.fetch_add(calls, kRelaxed);
}

void count_p2p(std::size_t slot, std::uint64_t now) noexcept {
  GroupSlot* group = at(page(), slot);
  if (group == nullptr) return;
  group->p2p.fetch_add(1, kRelaxed);
  group->changed_ns.store(now, kRelaxed);
}

void uncount_entered(std::size_t slot) noexcept {
  if (GroupSlot* group = at(page(), slot)) group->entered.fetch_sub(1, kRelaxed);
}

void uncount_p2p(std::size_t slot) noexcept {
  if (GroupSlot* group = at(page(), slot)) group->p2p.fetch_sub(1, kRelaxed);
}

std::uint64_t add_event(EventData& event) noexcept {
  Page* p = page();
  const GroupSlot* group = at(p, event.slot);
  if (group == nullptr) return kNoEvent;
  event.generation = static_cast<std::uint32_t>(group->generation.load(kRelaxed));
  event.thread = this_thread();
  event.index = p->next_event.fetch_add(1, kRelaxed);
  if (p->events[event.index % kRingEvents].record.write(event)) return event.index;
  dropped(p);
  return kNoEvent;
}

void set_splits(const SplitsData& splits) noexcept {
  Page* p = page();
  if (p == nullptr) return;
  if (!p->splits[splits.index % kSplitsKept].write(splits)) dropped(p);
}

void move_event(std::uint64_t index, std::size_t slot, OpState state, bool is_async) noexcept {
  Page* p = page();
  if (p == nullptr || index == kNoEvent) return;
  Record<EventData>& event = p->events[index % kRingEvents].record;
  std::uint64_t version = 0;
  if (!event.lock(version)) return dropped(p);
  if (event.word(offsetof(EventData, index)) == index &&
      half_word(event, offsetof(EventData, slot)) == slot &&
      half_word(event, offsetof(EventData, state)) < static_cast<std::uint32_t>(OpState::done)) {
    // The coarse clock may be a tick behind the time of issue.
    const std::uint64_t now = std::max(event.word(offsetof(EventData, issued_ns)), coarse_now_ns());
    event.set_word(offsetof(EventData, state), words_of(state, is_async));
    if (state == OpState::issued || state == OpState::blocked) {
      event.set_word(offsetof(EventData, blocked_ns), state == OpState::blocked ? now : 0);
    } else {
      event.set_word(offsetof(EventData, done_ns), now);
    }
  }
  event.unlock(version);
}

void set_event_device(std::uint64_t index, std::size_t slot, std::int32_t device) noexcept {
  Page* p = page();
  if (p == nullptr || index == kNoEvent) return;
  Record<EventData>& event = p->events[index % kRingEvents].record;
  std::uint64_t version = 0;
  if (!event.lock(version)) return dropped(p);
  static_assert(offsetof(EventData, reserved) == offsetof(EventData, device) + 4);
  if (event.word(offsetof(EventData, index)) == index &&
      half_word(event, offsetof(EventData, slot)) == slot) {
    event.set_word(offsetof(EventData, device), static_cast<std::uint32_t>(device));
  }
  event.unlock(version);
}

Origin origin_of(std::uint64_t index) noexcept {
  Page* p = page();
  EventData event;
  if (p == nullptr || !p->events[index % kRingEvents].record.read(event) || event.index != index ||
      event.state >= static_cast<std::uint32_t>(OpState::done)) {
    return Origin{kNone, false, false};
  }
  const GroupSlot* group = at(p, event.slot);
  if (group == nullptr || group->generation.load(kRelaxed) != event.generation) {
    return Origin{kNone, false, false};
  }
  return Origin{event.slot, event.p2p != 0, event.is_async != 0};
}

}  // namespace hangwatch::writer
