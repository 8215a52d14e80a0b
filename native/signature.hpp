// What a call works on: its tensor's dtype and shape, its root, peer and tag.

#pragma once

#include "groups.hpp"
#include "page.hpp"
#include "python.hpp"

namespace hangwatch::signature {

// Where an argument is: its position without self, or its names.
struct Parameter {
  int position = -1;  // -1: there is none
  const char* name = nullptr;
  const char* other_name = nullptr;
};

// One method of torch.distributed.ProcessGroup.
struct Method {
  const char* name;
  const char* wire;  // the canonical name of the operation
  Parameter tensor;  // the tensor, or list of tensors, that identifies the call
  Parameter root;    // the root's rank, or the options that hold it
  groups::Call call = groups::Call::collective;
  Parameter peer = {};
  Parameter tag = {};
};

constexpr Parameter kTensors = {0, "tensors", "tensor"};
constexpr Parameter kInput = {1, "input", "inputTensor"};
constexpr Parameter kInputs = {1, "inputs", "input_list"};
constexpr Parameter kInputTensors = {1, "input_tensors", "input_tensor"};
constexpr Parameter kOutputTensors = {0, "output_tensors", "output_tensor"};
constexpr Parameter kNoRoot = {};

// As bound in PyTorch's torch/csrc/distributed/c10d/init.cpp. What a rank gives
// is told, as that is what must agree: the input, but the output where only the
// root has an input (scatter) or where the inputs are a list (reduce_scatter).
constexpr Method kMethods[] = {
    {"allreduce", "all_reduce", kTensors, kNoRoot},
    {"allreduce_coalesced", "all_reduce_coalesced", kTensors, kNoRoot},
    {"broadcast", "broadcast", kTensors, {1, "opts", "root"}},
    {"reduce", "reduce", kTensors, {1, "opts", "root"}},
    {"allgather", "all_gather", kInputTensors, kNoRoot},
    {"allgather_coalesced", "all_gather_coalesced", kInputs, kNoRoot},
    {"_allgather_base", "all_gather_into_tensor", kInput, kNoRoot},
    {"all_gather_single", "all_gather_into_tensor", kInput, kNoRoot},
    {"all_gather_single_coalesced", "all_gather_into_tensor_coalesced", kInputs, kNoRoot},
    {"allgather_into_tensor_coalesced", "all_gather_into_tensor_coalesced", kInputs, kNoRoot},
    {"gather", "gather", kInputTensors, {2, "opts", "root"}},
    {"gather_single", "gather_single", kInput, {2, "opts", "root"}},
    {"gather_into_tensor", "gather_single", kInput, {2, "opts", "root"}},
    {"scatter", "scatter", kOutputTensors, {2, "opts", "root"}},
    {"reduce_scatter", "reduce_scatter", {0, "output_tensors", "output"}, kNoRoot},
    {"_reduce_scatter_base", "reduce_scatter_tensor", kInput, kNoRoot},
    {"reduce_scatter_single", "reduce_scatter_tensor", kInput, kNoRoot},
    {"reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", kInputs, kNoRoot},
    {"reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_coalesced", kInputs, kNoRoot},
    {"alltoall", "all_to_all", kInputTensors, kNoRoot},
    {"alltoall_base", "all_to_all_single", kInput, kNoRoot},
    {"all_to_all_single", "all_to_all_single", kInput, kNoRoot},
    {"barrier", "barrier", {}, kNoRoot},
    {"monitored_barrier", "monitored_barrier", {}, kNoRoot, groups::Call::monitored_barrier},
    {"send", "send", kTensors, kNoRoot, groups::Call::p2p, {1, "dstRank"}, {2, "tag"}},
    {"recv", "recv", kTensors, kNoRoot, groups::Call::p2p, {1, "srcRank"}, {2, "tag"}},
    {"recv_anysource", "recv", kTensors, kNoRoot, groups::Call::p2p, {}, {1, "tag"}},
};
constexpr std::size_t kMethodCount = sizeof(kMethods) / sizeof(kMethods[0]);

// The arguments of a vectorcall without self.
struct Arguments {
  PyObject* const* values;
  Py_ssize_t positional;
  PyObject* keywords;
};

bool setup();  // false with an exception set

// Fills dtype, shape, root, peer and tag of the event, and the device
// (only where `want_device`). Returns false with an exception set.
bool read(const Method& method, const Arguments& arguments, const groups::Slot& slot,
          bool want_device, EventData& event, groups::Device& device);

}  // namespace hangwatch::signature
