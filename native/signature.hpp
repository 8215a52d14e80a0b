// What a call works on: its tensor's dtype and shape, its root, peer and tag.

#pragma once

#include "groups.hpp"
#include "page.hpp"
#include "python.hpp"

namespace hangwatch::signature {

// One method of torch.distributed.ProcessGroup, and where its arguments are.
struct Method {
  const char* name;
  const char* wire;  // the canonical name of the operation
  groups::Call call;
  int tensor;  // position of the tensor (or list of tensors) that identifies it, -1 without
  const char* tensor_keywords[2];
  int options;  // position of the options, or of the root rank; -1 without
  bool rooted;
  int peer;  // position of the peer's rank, -1 without
  int tag;   // position of the tag, -1 without
};

constexpr auto kCollective = groups::Call::collective;
constexpr auto kP2p = groups::Call::p2p;

// As bound in PyTorch's torch/csrc/distributed/c10d/init.cpp. What a rank gives
// is told, as that is what must agree: the input, but the output where only the
// root has an input (scatter) or where the inputs are a list (reduce_scatter).
constexpr Method kMethods[] = {
    {"allreduce", "all_reduce", kCollective, 0, {"tensors", "tensor"}, 1, false, -1, -1},
    {"allreduce_coalesced", "all_reduce_coalesced", kCollective, 0, {"tensors"}, 1, false, -1, -1},
    {"broadcast", "broadcast", kCollective, 0, {"tensors", "tensor"}, 1, true, -1, -1},
    {"reduce", "reduce", kCollective, 0, {"tensors", "tensor"}, 1, true, -1, -1},
    {"allgather",
     "all_gather",
     kCollective,
     1,
     {"input_tensors", "input_tensor"},
     2,
     false,
     -1,
     -1},
    {"allgather_coalesced",
     "all_gather_coalesced",
     kCollective,
     1,
     {"input_list"},
     2,
     false,
     -1,
     -1},
    {"_allgather_base", "all_gather_into_tensor", kCollective, 1, {"input"}, 2, false, -1, -1},
    {"all_gather_single", "all_gather_into_tensor", kCollective, 1, {"input"}, 2, false, -1, -1},
    {"all_gather_single_coalesced",
     "all_gather_into_tensor_coalesced",
     kCollective,
     1,
     {"inputs", "input_list"},
     2,
     false,
     -1,
     -1},
    {"allgather_into_tensor_coalesced",
     "all_gather_into_tensor_coalesced",
     kCollective,
     1,
     {"inputs", "input_list"},
     2,
     false,
     -1,
     -1},
    {"gather", "gather", kCollective, 1, {"input_tensors", "input_tensor"}, 2, true, -1, -1},
    {"scatter", "scatter", kCollective, 0, {"output_tensors", "output_tensor"}, 2, true, -1, -1},
    {"reduce_scatter",
     "reduce_scatter",
     kCollective,
     0,
     {"output_tensors", "output"},
     2,
     false,
     -1,
     -1},
    {"_reduce_scatter_base",
     "reduce_scatter_tensor",
     kCollective,
     1,
     {"inputTensor", "input"},
     2,
     false,
     -1,
     -1},
    {"reduce_scatter_single",
     "reduce_scatter_tensor",
     kCollective,
     1,
     {"inputTensor", "input"},
     2,
     false,
     -1,
     -1},
    {"reduce_scatter_single_coalesced",
     "reduce_scatter_tensor_coalesced",
     kCollective,
     1,
     {"inputs", "inputTensors"},
     2,
     false,
     -1,
     -1},
    {"reduce_scatter_tensor_coalesced",
     "reduce_scatter_tensor_coalesced",
     kCollective,
     1,
     {"inputs", "inputTensors"},
     2,
     false,
     -1,
     -1},
    {"alltoall", "all_to_all", kCollective, 1, {"input_tensors", "input_tensor"}, 2, false, -1, -1},
    {"alltoall_base", "all_to_all_single", kCollective, 1, {"input"}, 4, false, -1, -1},
    {"all_to_all_single", "all_to_all_single", kCollective, 1, {"input"}, 4, false, -1, -1},
    {"barrier", "barrier", kCollective, -1, {}, 0, false, -1, -1},
    {"monitored_barrier",
     "monitored_barrier",
     groups::Call::monitored_barrier,
     -1,
     {},
     -1,
     false,
     -1,
     -1},
    {"send", "send", kP2p, 0, {"tensors"}, -1, false, 1, 2},
    {"recv", "recv", kP2p, 0, {"tensors"}, -1, false, 1, 2},
    {"recv_anysource", "recv", kP2p, 0, {"tensors"}, -1, false, -1, 1},
};
constexpr std::size_t kMethodCount = sizeof(kMethods) / sizeof(kMethods[0]);

// The arguments of a vectorcall without self.
struct Arguments {
  PyObject* const* values;
  Py_ssize_t positional;
  PyObject* keywords;
};

bool setup();   // false with an exception set
void forget();  // what it knows of the page's strings; for a new page

// Fills dtype, shape, root, peer, tag, is_async of the event, and the device
// (only where `want_device`). Returns false with an exception set.
bool read(const Method& method, const Arguments& arguments, const groups::Slot& slot,
          bool want_device, EventData& event, groups::Device& device);

}  // namespace hangwatch::signature
