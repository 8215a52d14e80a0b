// Made from hangwatch/model/operations.py: python native/methods.py > native/methods.hpp
// clang-format off

#pragma once

#include <cstddef>

#include "groups.hpp"

namespace hangwatch::signature {

// Where an argument is: its position without self, or its names.
struct Parameter {
  int position = -1;  // -1: there is none
  const char* names[3] = {};
};

// One method of torch.distributed.ProcessGroup.
struct Method {
  const char* name;
  const char* wire;     // the name of the operation
  groups::Call call;
  bool one_tensor;      // with one size and dtype on all ranks
  Parameter tensor;     // the tensor, or list of tensors, that identifies the call
  Parameter root;       // the root's rank, or the options that hold it
  Parameter peer;
  Parameter tag;
  Parameter sends;      // how many rows go to each member, and come from it
  Parameter receives;
};

constexpr Method kMethods[] = {
    {"allreduce", "all_reduce", groups::Call::collective, true, {0, {"tensors", "tensor"}}, {}, {}, {}, {}, {}},
    {"allreduce_coalesced", "all_reduce_coalesced", groups::Call::collective, false, {0, {"tensors", "tensor"}}, {}, {}, {}, {}, {}},
    {"broadcast", "broadcast", groups::Call::collective, true, {0, {"tensors", "tensor"}}, {1, {"opts", "root"}}, {}, {}, {}, {}},
    {"reduce", "reduce", groups::Call::collective, true, {0, {"tensors", "tensor"}}, {1, {"opts", "root"}}, {}, {}, {}, {}},
    {"allgather", "all_gather", groups::Call::collective, false, {1, {"input_tensors", "input_tensor"}}, {}, {}, {}, {}, {}},
    {"allgather_coalesced", "all_gather_coalesced", groups::Call::collective, false, {1, {"inputs", "input_list", "inputTensors"}}, {}, {}, {}, {}, {}},
    {"_allgather_base", "all_gather_into_tensor", groups::Call::collective, false, {1, {"input", "inputTensor"}}, {}, {}, {}, {}, {}},
    {"all_gather_single", "all_gather_into_tensor", groups::Call::collective, false, {1, {"input", "inputTensor"}}, {}, {}, {}, {}, {}},
    {"all_gather_single_coalesced", "all_gather_into_tensor_coalesced", groups::Call::collective, false, {1, {"inputs", "input_list", "inputTensors"}}, {}, {}, {}, {}, {}},
    {"allgather_into_tensor_coalesced", "all_gather_into_tensor_coalesced", groups::Call::collective, false, {1, {"inputs", "input_list", "inputTensors"}}, {}, {}, {}, {}, {}},
    {"gather", "gather", groups::Call::collective, false, {1, {"input_tensors", "input_tensor"}}, {2, {"opts", "root"}}, {}, {}, {}, {}},
    {"gather_single", "gather_single", groups::Call::collective, false, {1, {"input", "inputTensor"}}, {2, {"opts", "root"}}, {}, {}, {}, {}},
    {"gather_into_tensor", "gather_single", groups::Call::collective, false, {1, {"input", "inputTensor"}}, {2, {"opts", "root"}}, {}, {}, {}, {}},
    {"scatter", "scatter", groups::Call::collective, false, {0, {"output_tensors", "output_tensor", "output"}}, {2, {"opts", "root"}}, {}, {}, {}, {}},
    {"reduce_scatter", "reduce_scatter", groups::Call::collective, false, {0, {"output_tensors", "output_tensor", "output"}}, {}, {}, {}, {}, {}},
    {"_reduce_scatter_base", "reduce_scatter_tensor", groups::Call::collective, false, {1, {"input", "inputTensor"}}, {}, {}, {}, {}, {}},
    {"reduce_scatter_single", "reduce_scatter_tensor", groups::Call::collective, false, {1, {"input", "inputTensor"}}, {}, {}, {}, {}, {}},
    {"reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", groups::Call::collective, false, {1, {"inputs", "input_list", "inputTensors"}}, {}, {}, {}, {}, {}},
    {"reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_coalesced", groups::Call::collective, false, {1, {"inputs", "input_list", "inputTensors"}}, {}, {}, {}, {}, {}},
    {"alltoall", "all_to_all", groups::Call::collective, false, {1, {"input_tensors", "input_tensor"}}, {}, {}, {}, {}, {}},
    {"alltoall_base", "all_to_all_single", groups::Call::collective, false, {1, {"input", "inputTensor"}}, {}, {}, {}, {3, {"input_split_sizes"}}, {2, {"output_split_sizes"}}},
    {"all_to_all_single", "all_to_all_single", groups::Call::collective, false, {1, {"input", "inputTensor"}}, {}, {}, {}, {3, {"input_split_sizes"}}, {2, {"output_split_sizes"}}},
    {"barrier", "barrier", groups::Call::collective, false, {}, {}, {}, {}, {}, {}},
    {"monitored_barrier", "monitored_barrier", groups::Call::monitored_barrier, false, {}, {}, {}, {}, {}, {}},
    {"send", "send", groups::Call::p2p, false, {0, {"tensors", "tensor"}}, {}, {1, {"dstRank"}}, {2, {"tag"}}, {}, {}},
    {"recv", "recv", groups::Call::p2p, false, {0, {"tensors", "tensor"}}, {}, {1, {"srcRank"}}, {2, {"tag"}}, {}, {}},
    {"recv_anysource", "recv", groups::Call::p2p, false, {0, {"tensors", "tensor"}}, {}, {}, {1, {"tag"}}, {}, {}},
};
constexpr std::size_t kMethodCount = sizeof(kMethods) / sizeof(kMethods[0]);

}  // namespace hangwatch::signature
