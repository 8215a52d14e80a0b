#include "groups.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "foreign.hpp"
#include "writer.hpp"

namespace hangwatch::groups {
namespace {

// monitored_barrier takes two sequence numbers: the Flight Recorder counts it so on
// every rank, though c10d's number grows by 2 (n - 1) on rank 0 of n.
constexpr std::uint64_t kBarrierNumbers = 2;

Slot g_slots[kMaxGroups];
// No references: an address is forgotten when its group is retired.
std::unordered_map<PyObject*, std::int64_t>* g_slot_of = nullptr;
// Groups that are not recorded; one that is defined may be among them.
std::unordered_set<PyObject*>* g_unrecorded = nullptr;
PyObject* g_last_group = nullptr;
std::int64_t g_last_slot = -1;
PyObject* g_get_number = nullptr;
// Grows with every change of what stands above: an answer from before may be wrong.
std::uint64_t g_changes = 0;
std::uint32_t g_definitions = 0;

void forget_address(Slot& slot) {
  g_last_group = nullptr;
  ++g_changes;
  if (slot.address != nullptr && g_slot_of != nullptr) g_slot_of->erase(slot.address);
  slot.address = nullptr;
}

void remember_address(PyObject* group, std::int64_t index) {
  if (index < 0) {
    g_unrecorded->insert(group);
    return;
  }
  Slot& slot = g_slots[index];
  if (slot.address != nullptr && slot.address != group) g_slot_of->erase(slot.address);
  slot.address = group;
  (*g_slot_of)[group] = index;
}

// The backends of a group, without their devices: "cpu:gloo,cuda:nccl2" has two.
std::vector<std::string_view> names_of(std::string_view backends) {
  std::vector<std::string_view> names;
  while (!backends.empty()) {
    const std::size_t comma = std::min(backends.find(','), backends.size());
    std::string_view name = backends.substr(0, comma);
    backends.remove_prefix(std::min(comma + 1, backends.size()));
    const std::size_t colon = name.find(':');
    if (colon != std::string_view::npos) name.remove_prefix(colon + 1);
    names.push_back(name);
  }
  return names;
}

// NCCL's backends. The calls of a coalescing share one number in the first of them; those of
// torch 2.15 number each.
constexpr std::string_view kSharing = "nccl";
constexpr std::string_view kNccl[] = {kSharing, "nccl2", "nccl-lazy"};

bool is_nccl(std::string_view name) {
  return std::find(std::begin(kNccl), std::end(kNccl), name) != std::end(kNccl);
}

// How c10d numbers the calls of a group. It is the default backend's number alone.
Slot::Number number_kind(const std::vector<std::string_view>& names) {
  bool gloo = false;
  bool nccl = false;
  bool other = false;
  for (const std::string_view name : names) {
    (name == "gloo" ? gloo : is_nccl(name) ? nccl : other) = true;
  }
  if (other || !(gloo || nccl)) return Slot::Number::trial;
  if (gloo && nccl) return Slot::Number::mixed;
  return gloo ? Slot::Number::gloo : Slot::Number::nccl;
}

// False where it cannot be read, perhaps with an exception that is not ours.
bool read_number(PyObject* group, std::uint64_t& number) {
  if (g_get_number == nullptr) return false;
  PyObject* args[2] = {nullptr, group};
  const Ref value(PyObject_Vectorcall(g_get_number, args + 1, 1 | kArgumentsOffset, nullptr));
  if (value) number = PyLong_AsUnsignedLongLong(value.get());
  if (PyErr_Occurred() == nullptr) return true;
  if (!foreign::is_set()) PyErr_Clear();
  return false;
}

// By how much c10d's number grows with this call; -1 where only a look at it
// afterwards tells.
std::int64_t growth(const Slot& slot, const NumberedCall& numbered) {
  const bool collective = numbered.call == Call::collective;
  switch (slot.number) {
    case Slot::Number::gloo:
      return numbered.call == Call::monitored_barrier ? -1 : 1;
    case Slot::Number::nccl:
      return collective ? 1 : 0;
    case Slot::Number::mixed:
      // It is NCCL's number: what runs on the CPU (gloo) is not in it.
      if (!collective || numbered.device == Device::cpu) return 0;
      return numbered.device == Device::other ? 1 : -1;
    case Slot::Number::measured:
      return collective ? 1 : -1;
    case Slot::Number::trial:
      return -1;
    case Slot::Number::own:
      break;
  }
  return 0;
}

std::int64_t numbers_of(Call call) {
  if (call == Call::p2p) return 0;
  return call == Call::collective ? 1 : static_cast<std::int64_t>(kBarrierNumbers);
}

}  // namespace

bool setup(PyObject* process_group_type) {
  if (g_slot_of == nullptr) g_slot_of = new std::unordered_map<PyObject*, std::int64_t>;
  if (g_unrecorded == nullptr) g_unrecorded = new std::unordered_set<PyObject*>;
  // Taken from the class once: a subclass may do anything in its own.
  g_get_number = PyObject_GetAttrString(process_group_type, "_get_sequence_number_for_group");
  if (g_get_number == nullptr && PyErr_ExceptionMatches(PyExc_AttributeError) != 0) PyErr_Clear();
  return PyErr_Occurred() == nullptr;
}

void teardown() {
  PyObject* before = g_get_number;
  g_get_number = nullptr;
  Py_XDECREF(before);
}

void reset() {
  for (Slot& slot : g_slots) slot = Slot{};
  g_last_group = nullptr;
  ++g_changes;
  if (g_slot_of != nullptr) g_slot_of->clear();
  if (g_unrecorded != nullptr) g_unrecorded->clear();
}

bool is_still(std::size_t slot, std::uint32_t definition) {
  return g_slots[slot].definition == definition;
}

Slot* at(std::int64_t slot) {
  if (slot < 0 || slot >= static_cast<std::int64_t>(kMaxGroups)) return nullptr;
  return g_slots[slot].defined ? &g_slots[slot] : nullptr;
}

void define(std::size_t index, const std::vector<std::int64_t>& ranks, std::string_view backend) {
  Slot slot{};
  slot.defined = true;
  const std::vector<std::string_view> names = names_of(backend);
  slot.number = number_kind(names);
  slot.shares_number = (slot.number == Slot::Number::nccl || slot.number == Slot::Number::mixed) &&
                       std::find(names.begin(), names.end(), kSharing) != names.end();
  slot.ranks = ranks;
  slot.definition = ++g_definitions;
  forget_address(g_slots[index]);
  g_slots[index] = std::move(slot);
  if (g_unrecorded != nullptr) g_unrecorded->clear();
}

void retire(std::size_t index) {
  g_slots[index].defined = false;
  forget_address(g_slots[index]);
}

std::int64_t known_slot_of(PyObject* group) {
  const auto known = g_slot_of->find(group);
  return known == g_slot_of->end() ? -1 : known->second;
}

std::int64_t slot_of(PyObject* group, PyObject* resolve) {
  if (group == g_last_group) return g_last_slot;
  std::int64_t slot = known_slot_of(group);
  if (slot < 0 && g_unrecorded->count(group) == 0) {
    const std::uint64_t changes = g_changes;
    PyObject* args[2] = {nullptr, group};
    const Ref answer(PyObject_Vectorcall(resolve, args + 1, 1 | kArgumentsOffset, nullptr));
    const std::int64_t told = answer ? PyLong_AsLongLong(answer.get()) : -1;
    if (PyErr_Occurred() != nullptr) return kRaised;
    slot = at(told) == nullptr ? -1 : told;
    // Groups may have come and gone while it was asked for.
    if (told == kAskAgain || changes != g_changes) return slot;
    remember_address(group, slot);
  }
  g_last_group = group;
  g_last_slot = slot;
  return slot;
}

std::int32_t global_rank(const Slot& slot, std::int64_t rank) {
  if (rank < 0 || rank >= static_cast<std::int64_t>(slot.ranks.size())) return -1;
  return static_cast<std::int32_t>(slot.ranks[static_cast<std::size_t>(rank)]);
}

NumberedCall begin(std::size_t index, PyObject* group, Call call, Device device,
                   std::uint64_t now) {
  Slot& slot = g_slots[index];
  NumberedCall numbered{0, 0, false, false, call, device, slot.definition};
  if (call == Call::p2p) {
    numbered.seq = ++slot.p2p;
    writer::count_p2p(index, now);
  } else {
    slot.own += static_cast<std::uint64_t>(numbers_of(call));
    numbered.seq = slot.own - static_cast<std::uint64_t>(numbers_of(call)) + 1;
    writer::count_entered(index);
  }
  ++slot.in_flight;
  const std::uint32_t generation = ++slot.generation;
  const std::int64_t grows = growth(slot, numbered);
  // A send or a recv takes no number of the group; c10d's matters where it grows with it.
  if (slot.number != Slot::Number::own && (call != Call::p2p || grows != 0)) {
    numbered.was_read = read_number(group, numbered.before);
    if (!numbered.was_read) {
      if (PyErr_Occurred() != nullptr) {
        numbered.seq = 0;
        return numbered;
      }
      slot.number = Slot::Number::own;
    }
  }
  numbered.unsettled = slot.number != Slot::Number::own && grows != numbers_of(call);
  if (call != Call::p2p) {
    if (numbered.was_read && slot.number != Slot::Number::own) {
      numbered.seq = numbered.before + 1 - static_cast<std::uint64_t>(slot.adjust);
      // Another thread is inside c10d, or was while we read: whether its call is
      // counted in what we read cannot be known.
      if (slot.in_flight > 1 || generation != slot.generation) {
        numbered.seq = std::max(numbered.seq, slot.last_seq + 1);
      }
      if (slot.unsettled > 0) numbered.seq = slot.last_seq + 1;
      // What is coalesced shares one number.
      if (slot.coalescing && slot.coalesced_seq != 0) numbered.seq = slot.coalesced_seq;
    }
    slot.last_seq = numbered.seq + static_cast<std::uint64_t>(numbers_of(call)) - 1;
    // The second number of a monitored_barrier only once it is behind us.
    writer::raise_enqueued(index, numbered.seq, now);
  }
  if (numbered.unsettled) ++slot.unsettled;
  return numbered;
}

void cancel(std::size_t index, const NumberedCall& numbered) {
  Slot& slot = g_slots[index];
  if (slot.definition != numbered.definition) return;
  if (slot.in_flight > 0) --slot.in_flight;
  ++slot.generation;
  if (numbered.unsettled && slot.unsettled > 0) --slot.unsettled;
  if (numbered.call == Call::p2p) {
    if (slot.p2p > 0) --slot.p2p;
    writer::uncount_p2p(index);
    return;
  }
  slot.own -= static_cast<std::uint64_t>(numbers_of(numbered.call));
  writer::uncount_entered(index);
  if (numbered.seq == 0) return;  // it was given no number yet
  const std::uint64_t last =
      numbered.seq + static_cast<std::uint64_t>(numbers_of(numbered.call)) - 1;
  if (slot.last_seq == last) slot.last_seq = numbered.seq - 1;
  writer::lower_enqueued(index, numbered.seq, numbered.seq - 1);
}

bool end(std::size_t index, PyObject* group, const NumberedCall& numbered, bool failed) {
  Slot& slot = g_slots[index];
  if (slot.definition != numbered.definition) return true;  // the group went amid its call
  if (slot.in_flight > 0) --slot.in_flight;
  ++slot.generation;
  if (numbered.unsettled && slot.unsettled > 0) --slot.unsettled;
  if (numbered.call == Call::monitored_barrier && !failed) {
    writer::raise_enqueued(index, numbered.seq + kBarrierNumbers - 1, writer::now_ns());
  }
  if (slot.number == Slot::Number::own) return true;
  std::int64_t grew = growth(slot, numbered);
  if (grew >= 0 && !failed) {
    if (!slot.coalescing) slot.adjust += grew - numbers_of(numbered.call);
    return true;
  }
  // The look afterwards. An exception of the user's call is put aside for it.
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  std::uint64_t after = 0;
  const bool was_read = numbered.was_read && read_number(group, after) && after >= numbered.before;
  const bool good = PyErr_Occurred() == nullptr;
  foreign::restore_unless_set(type, value, traceback);
  if (slot.definition != numbered.definition) return good;
  if (!was_read) {
    if (!failed) slot.number = Slot::Number::own;
    return good;
  }
  grew = static_cast<std::int64_t>(after - numbered.before);
  if (failed && grew == 0) {
    // Refused before it was counted, as for an argument of a wrong type.
    if (numbered.call != Call::p2p) writer::lower_enqueued(index, numbered.seq, numbered.seq - 1);
    return good;
  }
  if (slot.number == Slot::Number::trial && numbered.call == Call::collective) {
    slot.number = grew == 1 ? Slot::Number::measured : Slot::Number::own;
    // What was sampled until now counted something else.
    if (grew != 1) writer::lower_enqueued(index, numbered.seq, slot.own);
    return good;
  }
  slot.adjust += grew - numbers_of(numbered.call);
  return good;
}

std::int64_t sample(std::size_t index, PyObject* group, std::int64_t completed) {
  Slot& slot = g_slots[index];
  // On trial it is taken to count collectives, as all backends of torch do.
  if (!slot.defined || slot.number == Slot::Number::own || slot.unsettled > 0) return -1;
  const std::uint32_t generation = slot.generation;
  std::uint64_t number = 0;
  // Reading it may let another thread run, and its call may change what it means.
  if (!read_number(group, number) || generation != slot.generation) return -1;
  const std::int64_t seq = static_cast<std::int64_t>(number) - slot.adjust;
  if (seq < 0) return -1;
  writer::raise_enqueued(index, static_cast<std::uint64_t>(seq), writer::now_ns());
  // In a mixed group the number says nothing of what runs on the CPU.
  if (slot.number == Slot::Number::mixed) return seq;
  // As many calls came after the completed one as the number has grown since;
  // where some of them were sends, this is less than what is complete, never more.
  if (completed >= static_cast<std::int64_t>(number)) {
    writer::raise_completed(index, seq);
  } else if (completed >= 0 && completed > slot.adjust) {
    writer::raise_completed(index, completed - slot.adjust);
  }
  return seq;
}

void begin_coalescing(std::size_t index, PyObject* group) {
  Slot& slot = g_slots[index];
  slot.coalescing = true;
  slot.coalesced_seq = 0;
  std::uint64_t number = 0;
  if (slot.shares_number && read_number(group, number)) {
    slot.coalesced_seq = number + 1 - static_cast<std::uint64_t>(slot.adjust);
  }
}

void end_coalescing(std::size_t index) {
  g_slots[index].coalescing = false;
  g_slots[index].coalesced_seq = 0;
}

}  // namespace hangwatch::groups
