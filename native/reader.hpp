// Reads a page out of any bytes: nothing that stands in them is trusted.

#pragma once

#include <string>
#include <utility>
#include <vector>

#include "page.hpp"

namespace hangwatch {

struct SiteView {
  std::string file;  // empty where there is no site
  std::string function;
  std::uint64_t line = 0;
};

struct GroupView {
  std::size_t slot;
  std::string name, desc, backend;
  std::vector<std::int64_t> ranks;
  std::uint32_t member_count;  // more than ranks.size() where truncated
  bool truncated;
  std::uint32_t index;
  std::uint64_t enqueued, entered, left, p2p, changed_ns, made_ns, ended_ns;
  std::int64_t completed;
  std::int64_t reached, passed;                                      // -1 where unknown
  std::vector<std::pair<std::uint64_t, std::uint64_t>> checkpoints;  // (seq, hash)
};

struct EventView {
  EventData data;
  std::string op, wire, dtype;
  SiteView site;
  std::vector<std::int64_t> sends, receives;  // rows for each member; empty where not known
};

struct NewGroupView {
  NewGroupData data;
  std::vector<std::int64_t> ranks;
  SiteView site;
};

struct MarkView {
  MarkData data;
  SiteView site;
};

struct PageView {
  IdentityData identity;
  PhaseData phase;
  InCallData in_call;
  ExceptionData exception;
  std::string handling, disarmed, beacons_off, torch_lacks;
  std::uint64_t heartbeat_ns, gil_ns, pending_since_ns, swallowed, dropped;
  std::uint64_t groups_left_out;
  std::vector<GroupView> groups;
  std::vector<NewGroupView> new_groups;  // oldest first
  std::vector<MarkView> marks;
  std::vector<EventView> events;  // oldest first
};

// Returns why the bytes are no page, or an empty string. `data` may be a live
// mapping that its owner goes on writing. Throws std::bad_alloc only.
std::string read_page(const unsigned char* data, std::size_t size, bool with_events,
                      PageView& view);

// The moments with a number above `after`, oldest first; otherwise as read_page.
std::string read_moments(const unsigned char* data, std::size_t size, std::uint64_t after,
                         std::vector<MomentData>& moments);

}  // namespace hangwatch
