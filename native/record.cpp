#include "record.hpp"

#include <string>
#include <string_view>

#include "callsite.hpp"
#include "foreign.hpp"
#include "streams.hpp"
#include "tensor.hpp"
#include "writer.hpp"

namespace hangwatch::record {
namespace {

bool g_disarmed = false;
int g_failures = 0;
std::uint32_t g_wires[signature::kMethodCount];

// Which events a Work object stands for. By address, without a reference: an
// entry is replaced when its address is used anew, or room is needed. A Work
// that nobody waits for costs nothing but its entry.
constexpr Wait kNoWait{writer::kNoEvent, 0, -1, 0, nullptr, false, true, 0, 0, -1};
constexpr Call kNoCall{writer::kNoEvent, -1, nullptr, {}, false, -1};

struct Work {
  PyObject* object;
  Wait wait;
};
constexpr Work kNoWork{nullptr, kNoWait};
// The last one, which most calls are done with at once, and the others.
Work g_last_work = kNoWork;
constexpr std::size_t kWorkSets = 256;
constexpr std::size_t kWorkWays = 8;  // fewer fill up, and lose their oldest, than of twice 4
Work g_works[kWorkSets][kWorkWays];
std::size_t g_work_count = 0;

// Calls since a coalescing was opened, by slot.
struct Coalescing {
  bool open;
  Wait calls;
};
Coalescing g_coalescing[kMaxGroups];

Work* works_of(PyObject* object) {
  const auto bits = reinterpret_cast<std::uintptr_t>(object) / 16;
  return g_works[(bits ^ (bits >> 9)) & (kWorkSets - 1)];
}

// Takes out what is known of a Work.
Wait take(PyObject* object) {
  Wait wait = kNoWait;
  if (g_last_work.object == object) {
    wait = g_last_work.wait;
    g_last_work = kNoWork;
  }
  if (g_work_count == 0) return wait;
  Work* set = works_of(object);
  for (std::size_t i = 0; i < kWorkWays; ++i) {
    if (set[i].object != object) continue;
    if (wait.slot < 0) wait = set[i].wait;
    set[i] = kNoWork;
    --g_work_count;
  }
  return wait;
}

void put_aside(const Work& work) {
  Work* set = works_of(work.object);
  Work* chosen = set;
  for (std::size_t i = 1; i < kWorkWays && chosen->object != nullptr; ++i) {
    // A free entry, or else that of the oldest call.
    if (set[i].object == nullptr || set[i].wait.last < chosen->wait.last) chosen = &set[i];
  }
  if (chosen->object == nullptr) ++g_work_count;
  *chosen = work;
}

void remember(PyObject* object, const Wait& wait) {
  take(object);
  if (g_last_work.object != nullptr) put_aside(g_last_work);
  g_last_work = Work{object, wait};
}

void move_all(const Wait& wait, OpState state) {
  for (std::uint64_t event = wait.first; event <= wait.last; ++event) {
    writer::move_event(event, static_cast<std::size_t>(wait.slot), state, wait.is_async);
  }
}

// Before a collective that has a tensor on a CUDA device, or none (barrier: NCCL takes the
// device that the group used before).
std::int32_t mark_reached(groups::Slot& slot, std::int64_t index, std::uint64_t seq,
                          std::int32_t device, bool has_tensor) {
  if (device >= 0) {
    slot.device = device;
  } else if (!has_tensor && slot.number == groups::Slot::Number::nccl) {
    device = slot.device;
  }
  return streams::mark(BeaconKind::reached, index, seq, device) ? device : -1;
}

// Calls have returned, or what was waited for has.
void count_left(std::int64_t slot, std::uint32_t definition, std::uint64_t calls) {
  const auto index = static_cast<std::size_t>(slot);
  if (groups::is_still(index, definition)) writer::count_left(index, calls);
}

// False where an exception that is not ours is set.
bool mark_passed(const Wait& wait) {
  if (wait.device < 0 || wait.collectives == 0) return true;
  streams::mark(BeaconKind::passed, wait.slot, wait.seq, wait.device);
  return PyErr_Occurred() == nullptr;
}

void keep_splits(const signature::Method& method, const signature::Arguments& arguments,
                 std::uint64_t event) noexcept {
  SplitsData splits{};
  if (event == writer::kNoEvent) return;
  if (signature::read_splits(method, arguments, event, splits)) writer::set_splits(splits);
}

Call interrupted() {
  Call call = kNoCall;
  call.slot = kInterrupted;
  return call;
}

}  // namespace

bool setup() { return signature::setup() && callsite::setup(); }

void reset() {
  groups::reset();
  tensor::forget();
  callsite::forget();
  for (auto& set : g_works) {
    for (Work& work : set) work = kNoWork;
  }
  g_last_work = kNoWork;
  g_work_count = 0;
  for (Coalescing& coalescing : g_coalescing) coalescing = Coalescing{false, kNoWait};
  for (std::size_t i = 0; i < signature::kMethodCount; ++i) {
    g_wires[i] = writer::intern(signature::kMethods[i].wire);
  }
  g_disarmed = false;
  g_failures = 0;
}

void disarm() { g_disarmed = true; }

bool armed() noexcept { return !g_disarmed && writer::is_open(); }

bool swallow() noexcept try {
  if (foreign::is_set()) return false;
  std::string why = "unknown error";
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  const Ref text(value != nullptr ? PyObject_Str(value) : nullptr);
  if (text) {
    if (const char* utf8 = PyUnicode_AsUTF8AndSize(text.get(), nullptr)) why = utf8;
  }
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
  writer::count_swallowed();
  if (++g_failures >= kMaxFailures && !g_disarmed) {
    g_disarmed = true;
    writer::set_disarmed("recording failed " + std::to_string(g_failures) + " times: " + why);
  }
  if (foreign::is_set()) return false;  // it came while the text was asked for
  PyErr_Clear();
  return true;
} catch (...) {
  g_disarmed = true;
  return PyErr_Occurred() == nullptr;
}

Call begin(std::size_t method, PyObject* group, const signature::Arguments& arguments,
           PyObject* resolve) noexcept try {
  Call call = kNoCall;
  const signature::Method& m = signature::kMethods[method];
  const std::int64_t index = groups::slot_of(group, resolve);
  if (index == groups::kRaised) return interrupted();
  groups::Slot* slot = groups::at(index);
  if (slot == nullptr) return call;
  EventData event{};
  event.slot = static_cast<std::uint32_t>(index);
  event.wire = g_wires[method];
  event.dtype = kNone;
  event.root = -1;
  event.peer = -1;
  event.device = -1;
  event.p2p = m.call == groups::Call::p2p ? 1 : 0;
  groups::Device device = groups::Device::unknown;
  const bool is_gloo = slot->number == groups::Slot::Number::gloo;
  if (!signature::read(m, arguments, *slot, !is_gloo || streams::wanted(), event, device) &&
      !swallow()) {
    return interrupted();
  }
  const std::int32_t on_device = event.device;
  event.device = -1;  // before there is a beacon
  callsite::Site site{};
  if (!callsite::find(site) && !swallow()) return interrupted();
  if (!slot->defined) return call;  // all that could run a handler, which destroyed it
  event.site = site.site;
  event.op = site.op == kNone ? event.wire : site.op;
  const std::uint64_t now = writer::now_ns();
  call.slot = index;
  call.caller = site.caller;
  call.numbered = groups::begin(static_cast<std::size_t>(index), group, m.call, device, now);
  if (call.numbered.seq == 0) {
    groups::cancel(static_cast<std::size_t>(index), call.numbered);
    return interrupted();
  }
  // wait() returns early where the work is only queued on a stream of a device.
  call.completes = is_gloo || device == groups::Device::cpu || m.tensor.position < 0;
  event.seq = call.numbered.seq;
  event.issued_ns = now;
  event.blocked_ns = now;
  event.state = static_cast<std::uint64_t>(OpState::blocked);
  call.event = writer::add_event(event);
  if (m.sends.position >= 0) keep_splits(m, arguments, call.event);
  if (event.p2p == 0) {
    call.device = mark_reached(*slot, index, event.seq, on_device, m.tensor.position >= 0);
    if (streams::wanted() && PyErr_Occurred() != nullptr) {
      groups::cancel(static_cast<std::size_t>(index), call.numbered);
      writer::move_event(call.event, static_cast<std::size_t>(index), OpState::failed, false);
      return interrupted();
    }
    if (call.device >= 0) {
      writer::set_event_device(call.event, static_cast<std::size_t>(index), call.device);
    }
    writer::agree(event, m.one_tensor);
  }
  return call;
} catch (...) {
  return swallow() ? kNoCall : interrupted();
}

bool end(const Call& call, PyObject* group, PyObject* result) noexcept {
  if (call.slot < 0) {
    if (result != nullptr) take(result);  // its address was another's before
    return true;
  }
  if (!armed()) return true;
  const auto slot = static_cast<std::size_t>(call.slot);
  const bool good = groups::end(slot, group, call.numbered, result == nullptr);
  const std::uint64_t collectives = call.numbered.call == groups::Call::p2p ? 0 : 1;
  const Wait wait{call.event,        call.event,     call.slot, collectives,
                  call.caller,       call.completes, true,      call.numbered.definition,
                  call.numbered.seq, call.device};
  Coalescing& coalescing = g_coalescing[slot];
  if (result == nullptr) {
    writer::move_event(call.event, slot, OpState::failed, false);
    count_left(call.slot, call.numbered.definition, collectives);
  } else if (!groups::is_still(slot, call.numbered.definition)) {
    writer::move_event(call.event, slot, OpState::done, false);  // of a group that is gone
  } else if (coalescing.open && call.event != writer::kNoEvent) {
    writer::move_event(call.event, slot, OpState::issued, true);
    if (coalescing.calls.slot < 0) coalescing.calls = wait;
    coalescing.calls.last = call.event;
    coalescing.calls.seq = call.numbered.seq;
    coalescing.calls.collectives += coalescing.calls.first == call.event ? 0 : collectives;
  } else if (result != Py_None) {
    writer::move_event(call.event, slot, OpState::issued, true);
    if (call.event != writer::kNoEvent) remember(result, wait);
  } else {
    const OpState state = call.completes ? OpState::done : OpState::issued;
    writer::move_event(call.event, slot, state, false);
    count_left(call.slot, call.numbered.definition, collectives);
    return good && mark_passed(wait);
  }
  return good;
}

bool coalescing_began(PyObject* group, PyObject* resolve) noexcept try {
  const std::int64_t slot = groups::slot_of(group, resolve);
  if (slot == groups::kRaised) return false;
  if (groups::at(slot) == nullptr) return true;
  g_coalescing[slot] = Coalescing{true, kNoWait};
  groups::begin_coalescing(static_cast<std::size_t>(slot), group);
  if (PyErr_Occurred() == nullptr) return true;
  g_coalescing[slot] = Coalescing{false, kNoWait};
  groups::end_coalescing(static_cast<std::size_t>(slot));
  return false;
} catch (...) {
  return swallow();
}

bool coalescing_ended(PyObject* group, PyObject* result) noexcept {
  const std::int64_t slot = groups::known_slot_of(group);
  if (groups::at(slot) == nullptr) return true;
  if (!g_coalescing[slot].open) return true;
  const Wait calls = g_coalescing[slot].calls;
  g_coalescing[slot] = Coalescing{false, kNoWait};
  groups::end_coalescing(static_cast<std::size_t>(slot));
  if (calls.slot < 0) return true;
  if (result == nullptr) return wait_end(calls, false, true);
  if (result != Py_None) {
    remember(result, calls);
    return true;
  }
  count_left(slot, calls.definition, calls.collectives);
  return mark_passed(calls);
}

Wait wait_begin(PyObject* work) noexcept {
  // What is waited for once is not told again.
  Wait wait = take(work);
  if (wait.slot < 0) return wait;
  wait.is_async = wait.caller != callsite::caller();
  move_all(wait, OpState::blocked);
  return wait;
}

bool wait_end(const Wait& wait, bool completes, bool failed) noexcept {
  if (wait.slot < 0 || !armed()) return true;
  const OpState state = failed                        ? OpState::failed
                        : completes && wait.completes ? OpState::done
                                                      : OpState::issued;
  move_all(wait, state);
  count_left(wait.slot, wait.definition, wait.collectives);
  return failed || mark_passed(wait);
}

std::int64_t add(EventData& event) noexcept {
  if (!armed() || groups::at(event.slot) == nullptr) return -1;
  callsite::Site site{};
  if (!callsite::find(site) && !swallow()) return -1;
  event.site = site.site;
  event.issued_ns = event.blocked_ns = writer::now_ns();
  event.state = static_cast<std::uint64_t>(OpState::blocked);
  if (event.p2p != 0) {
    writer::count_p2p(event.slot, event.issued_ns);
  } else {
    writer::count_entered(event.slot);
    writer::raise_enqueued(event.slot, event.seq, event.issued_ns);
  }
  const std::uint64_t index = writer::add_event(event);
  return index == writer::kNoEvent ? -1 : static_cast<std::int64_t>(index);
}

void finish(std::int64_t index, bool failed) noexcept {
  if (index < 0 || !armed()) return;
  const auto event = static_cast<std::uint64_t>(index);
  const writer::Origin origin = writer::origin_of(event);
  if (origin.slot >= kMaxGroups) return;
  const OpState state = failed ? OpState::failed : OpState::done;
  writer::move_event(event, origin.slot, state, origin.is_async);
  if (!origin.p2p) writer::count_left(origin.slot, 1);
}

}  // namespace hangwatch::record
