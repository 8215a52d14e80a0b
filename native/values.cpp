#include "values.hpp"

namespace hangwatch {

const char* const kPhaseNames[kPhases] = {"born",       "init",   "running",
                                          "finalizing", "exited", "raised"};
const char* const kOpStateNames[kOpStates] = {"issued", "blocked", "done", "failed"};

namespace {

PyObject* text(const std::string& value) {
  // Whatever stands in a page; cut off within a character, perhaps.
  return PyUnicode_DecodeUTF8(value.data(), static_cast<Py_ssize_t>(value.size()), "replace");
}

PyObject* number(std::int64_t value) { return PyLong_FromLongLong(value); }
PyObject* count(std::uint64_t value) { return PyLong_FromUnsignedLongLong(value); }

PyObject* none() {
  Py_INCREF(Py_None);
  return Py_None;
}

// A dict under construction: once something has failed, it stays failed.
class Dict {
 public:
  Dict() : dict_(PyDict_New()) {}

  Dict& set(const char* key, PyObject* stolen) {
    const Ref value(stolen);
    if (!dict_ || !value || PyDict_SetItemString(dict_.get(), key, value.get()) != 0) dict_ = Ref();
    return *this;
  }
  PyObject* release() { return dict_.release(); }

 private:
  Ref dict_;
};

template <class Items, class Convert>
PyObject* list_of(const Items& items, Convert convert) {
  Ref list(PyList_New(0));
  for (const auto& item : items) {
    const Ref value(list ? convert(item) : nullptr);
    if (!value || PyList_Append(list.get(), value.get()) != 0) return nullptr;
  }
  return list.release();
}

PyObject* site_dict(const std::string& file, std::uint64_t line, const std::string& function) {
  if (file.empty()) return none();
  return Dict()
      .set("file", text(file))
      .set("line", count(line))
      .set("function", text(function))
      .release();
}

PyObject* identity_dict(const IdentityData& identity) {
  return Dict()
      .set("pid", number(identity.pid))
      .set("start_ticks", count(identity.start_ticks))
      .set("rank", number(identity.rank))
      .set("world_size", number(identity.world_size))
      .set("local_rank", number(identity.local_rank))
      .set("local_world_size", number(identity.local_world_size))
      .set("restart", number(identity.restart))
      .set("host", text(identity.host.str()))
      .set("store_host", text(identity.store_host.str()))
      .set("store_port", number(identity.store_port))
      .set("run_id", text(identity.run_id.str()))
      .set("program", text(identity.program.str()))
      .release();
}

PyObject* exception_dict(const ExceptionData& exception) {
  if (exception.ns == 0) return none();
  return Dict()
      .set("type", text(exception.type.str()))
      .set("message", text(exception.message.str()))
      .set("site", site_dict(exception.file.str(), exception.line, exception.function.str()))
      .set("at_ns", count(exception.ns))
      .set("in_cpp", PyBool_FromLong(exception.in_cpp != 0))
      .release();
}

PyObject* checkpoint_list(const std::pair<std::uint64_t, std::uint64_t>& checkpoint) {
  return list_of(std::vector<std::uint64_t>{checkpoint.first, checkpoint.second}, count);
}

PyObject* group_dict(const GroupView& group) {
  Dict key;
  key.set("ranks", list_of(group.ranks, number))
      .set("desc", text(group.desc))
      .set("index", count(group.index));
  return Dict()
      .set("slot", count(group.slot))
      .set("name", text(group.name))
      .set("key", key.release())
      .set("members", count(group.member_count))
      .set("truncated", PyBool_FromLong(group.truncated))
      .set("backend", text(group.backend))
      .set("enqueued", count(group.enqueued))
      .set("completed", number(group.completed))
      .set("reached", number(group.reached))
      .set("passed", number(group.passed))
      .set("entered", count(group.entered))
      .set("left", count(group.left))
      .set("p2p", count(group.p2p))
      .set("changed_ns", count(group.changed_ns))
      .set("made_ns", count(group.made_ns))
      .set("ended_ns", count(group.ended_ns))
      .set("alive", PyBool_FromLong(group.ended_ns == 0))
      .set("checkpoints", list_of(group.checkpoints, checkpoint_list))
      .release();
}

PyObject* new_group_dict(const NewGroupView& call) {
  return Dict()
      .set("index", count(call.data.index))
      .set("ns", count(call.data.ns))
      .set("number", number(call.data.number))
      .set("ranks", list_of(call.ranks, number))
      .set("site", site_dict(call.site.file, call.site.line, call.site.function))
      .release();
}

PyObject* mark_dict(const MarkView& mark) {
  return Dict()
      .set("kind", text(mark.data.kind.str()))
      .set("text", text(mark.data.text.str()))
      .set("count", count(mark.data.count))
      .set("ns", count(mark.data.ns))
      .set("site", site_dict(mark.site.file, mark.site.line, mark.site.function))
      .release();
}

PyObject* event_dict(const EventView& event) {
  const EventData& data = event.data;
  const std::vector<std::int64_t> shape(data.shape, data.shape + data.ndim);
  Dict dict;
  dict.set("index", count(data.index))
      .set("slot", count(data.slot))
      .set("op", text(event.op))
      .set("wire", text(event.wire))
      .set("seq", count(data.seq))
      .set("p2p", PyBool_FromLong(data.p2p != 0))
      .set("dtype", text(event.dtype))
      .set("shape", list_of(shape, number))
      .set("root", number(data.root))
      .set("peer", number(data.peer))
      .set("tag", number(data.tag))
      .set("is_async", PyBool_FromLong(data.is_async != 0))
      .set("state", PyUnicode_FromString(kOpStateNames[data.state]))
      .set("issued_ns", count(data.issued_ns))
      .set("blocked_ns", count(data.blocked_ns))
      .set("done_ns", count(data.done_ns))
      .set("site", site_dict(event.site.file, event.site.line, event.site.function))
      .set("device", number(data.device))
      .set("thread", count(data.thread));
  if (!event.sends.empty()) dict.set("sends", list_of(event.sends, number));
  if (!event.receives.empty()) dict.set("receives", list_of(event.receives, number));
  return dict.release();
}

}  // namespace

PyObject* to_dict(const PageView& view, bool with_events) {
  const InCallData& in_call = view.in_call;
  Dict page;
  page.set("identity", identity_dict(view.identity))
      .set("recorder", PyUnicode_FromString("native"))
      .set("recorder_reason", PyUnicode_FromString(""))
      .set("phase", PyUnicode_FromString(kPhaseNames[view.phase.phase]))
      .set("phase_ns", count(view.phase.ns))
      .set("created_ns", count(view.identity.created_ns))
      .set("heartbeat_ns", count(view.heartbeat_ns))
      .set("gil_ns", count(view.gil_ns))
      .set("handling", text(view.handling))
      .set("pending_since_ns", count(view.pending_since_ns))
      .set("in_call", text(in_call.name.str()))
      .set("in_call_ns", count(in_call.ns))
      .set("in_call_site", site_dict(in_call.file.str(), in_call.line, in_call.function.str()))
      .set("exception", exception_dict(view.exception))
      .set("swallowed", count(view.swallowed))
      .set("dropped", count(view.dropped))
      .set("groups_left_out", count(view.groups_left_out))
      .set("disarmed", text(view.disarmed))
      .set("beacons", text(view.beacons_off))
      .set("torch_lacks", text(view.torch_lacks))
      .set("groups", list_of(view.groups, group_dict))
      .set("new_groups", list_of(view.new_groups, new_group_dict))
      .set("marks", list_of(view.marks, mark_dict))
      .set("events", with_events ? list_of(view.events, event_dict) : PyList_New(0));
  return page.release();
}

PyObject* to_list(const std::vector<MomentData>& moments) {
  return list_of(moments, [](const MomentData& moment) -> PyObject* {
    Ref groups(PyList_New(0));
    for (std::size_t i = 0; i < moment.count && groups; ++i) {
      const auto& group = moment.groups[i];
      const Ref value(Py_BuildValue("(KKK)", group.slot, group.issued, group.completed));
      if (!value || PyList_Append(groups.get(), value.get()) != 0) groups = Ref();
    }
    if (!groups) return nullptr;
    const long long slot =
        moment.blocked_slot < kMaxGroups ? static_cast<long long>(moment.blocked_slot) : -1;
    return Py_BuildValue("(KKILKKLiO)", moment.number, moment.ns, moment.thread, moment.call,
                         moment.cpu_ns, moment.delay_ns, slot, moment.blocked_peer, groups.get());
  });
}

}  // namespace hangwatch
