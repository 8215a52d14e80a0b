// A backend of c10d's under a name of its own, for tests: tensors travel through the store.
//
// One thread runs its calls in the order in which they were issued, as a stream of a device
// does, and says when one is complete. It records nothing itself: torch's own hook does.

#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

namespace {

using Tensors = std::vector<at::Tensor>;
template <typename T>
using Ptr = c10::intrusive_ptr<T>;

class Call : public c10d::Work {
 public:
  Call(c10d::OpType type, Tensors outputs)
      : c10d::Work(-1, type),
        outputs_(std::move(outputs)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()))) {}

  void complete() {
    finish();
    future_->markCompleted(c10::IValue(outputs_));
  }
  Tensors result() override { return outputs_; }
  Ptr<c10::ivalue::Future> getFuture() override { return future_; }
  void synchronize() override {}

 private:
  Tensors outputs_;
  Ptr<c10::ivalue::Future> future_;
};

class StoreBackend : public c10d::Backend {
 public:
  StoreBackend(Ptr<c10d::Store> store, int rank, int size, std::string name, bool completes)
      : c10d::Backend(rank, size),
        store_(std::move(store)),
        name_(std::move(name)),
        completes_(completes),
        // Lives on in a job that hangs; such a process is ended from outside.
        thread_([this] { run(); }) {}

  ~StoreBackend() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  const std::string getBackendName() const override { return name_; }
  std::uint64_t getSequenceNumberForGroup() override { return collectives_; }
  bool supportsCompletionHooks() const override { return completes_; }
  void registerCompletionHook(std::int64_t id, c10d::CompletionHook hook) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    hooks_[id] = std::move(hook);
  }
  void unregisterCompletionHook(std::int64_t id) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    hooks_.erase(id);
  }

  Ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions&) override {
    return collective(c10d::OpType::ALLREDUCE, tensors, [=, this](const std::string& key) {
      for (const at::Tensor& tensor : tensors) {
        at::Tensor(tensor).copy_(at::stack(gathered(key, tensor)).sum(0));
      }
    });
  }

  Ptr<c10d::Work> reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    const auto root = options.rootRank;
    return collective(c10d::OpType::REDUCE, tensors, [=, this](const std::string& key) {
      const at::Tensor sum = at::stack(gathered(key, tensors[0])).sum(0);
      if (getRank() == root) at::Tensor(tensors[0]).copy_(sum);
    });
  }

  Ptr<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const auto root = options.rootRank;
    return collective(c10d::OpType::BROADCAST, tensors, [=, this](const std::string& key) {
      if (getRank() == root) put(key, tensors[0]);
      if (getRank() != root) take(key, tensors[0]);
    });
  }

  Ptr<c10d::Work> allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                            const c10d::AllgatherOptions&) override {
    const Tensors into = outputs[0];
    const at::Tensor input = inputs[0];
    return collective(c10d::OpType::ALLGATHER, into, [=, this](const std::string& key) {
      const Tensors all = gathered(key, input);
      for (std::size_t i = 0; i < all.size(); ++i) at::Tensor(into[i]).copy_(all[i]);
    });
  }

  Ptr<c10d::Work> all_gather_single(at::Tensor& output, at::Tensor& input,
                                    const c10d::AllgatherOptions&) override {
    const at::Tensor into = output;
    const at::Tensor from = input;
    return collective(c10d::OpType::_ALLGATHER_BASE, {into}, [=, this](const std::string& key) {
      at::Tensor(into).copy_(at::cat(gathered(key, from)).view_as(into));
    });
  }

  Ptr<c10d::Work> reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                        const c10d::ReduceScatterOptions&) override {
    const at::Tensor into = output;
    const at::Tensor from = input;
    return collective(c10d::OpType::_REDUCE_SCATTER_BASE, {into},
                      [=, this](const std::string& key) {
                        const at::Tensor sum = at::stack(gathered(key, from)).sum(0).flatten();
                        at::Tensor(into).copy_(sum.chunk(getSize())[getRank()].view_as(into));
                      });
  }

  Ptr<c10d::Work> gather(std::vector<Tensors>& outputs, Tensors& inputs,
                         const c10d::GatherOptions& options) override {
    const Tensors into = getRank() == options.rootRank ? outputs[0] : Tensors();
    const at::Tensor input = inputs[0];
    return collective(c10d::OpType::GATHER, into, [=, this](const std::string& key) {
      const Tensors all = gathered(key, input);
      for (std::size_t i = 0; i < into.size(); ++i) at::Tensor(into[i]).copy_(all[i]);
    });
  }

  Ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override {
    return collective(c10d::OpType::BARRIER, {},
                      [=, this](const std::string& key) { gathered(key, at::zeros({1})); });
  }

  Ptr<c10d::Work> send(Tensors& tensors, int peer, int) override {
    const std::string key = "p2p/" + std::to_string(getRank()) + "/" + std::to_string(peer) + "/" +
                            std::to_string(sent_[peer]++);
    return issued(c10d::OpType::SEND, tensors, [=, this] { put(key, tensors[0]); });
  }

  Ptr<c10d::Work> recv(Tensors& tensors, int peer, int) override {
    const std::string key = "p2p/" + std::to_string(peer) + "/" + std::to_string(getRank()) + "/" +
                            std::to_string(received_[peer]++);
    return issued(c10d::OpType::RECV, tensors, [=, this] { take(key, tensors[0]); });
  }

 private:
  using Steps = std::function<void()>;
  using Keyed = std::function<void(const std::string&)>;

  Ptr<c10d::Work> collective(c10d::OpType type, const Tensors& tensors, Keyed steps) {
    // Calls that are not the same never meet.
    const std::string key = "all/" + std::to_string(++collectives_) + c10d::opTypeToString(type);
    return issued(type, tensors, [steps = std::move(steps), key] { steps(key); });
  }

  Ptr<c10d::Work> issued(c10d::OpType type, const Tensors& tensors, Steps steps) {
    auto call = c10::make_intrusive<Call>(type, tensors);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      calls_.emplace_back(call, std::move(steps));
    }
    changed_.notify_all();
    return call;
  }

  void run() {
    while (true) {
      std::pair<Ptr<Call>, Steps> next;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return ending_ || !calls_.empty(); });
        if (calls_.empty()) return;
        next = std::move(calls_.front());
        calls_.pop_front();
      }
      try {
        next.second();
      } catch (const std::exception&) {  // the store is gone: the call is never complete
        return;
      }
      next.first->complete();
      std::map<std::int64_t, c10d::CompletionHook> hooks;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        hooks = hooks_;
      }
      for (const auto& [id, hook] : hooks) hook({next.first->getCompletionKey(), std::nullopt});
    }
  }

  void put(const std::string& key, const at::Tensor& tensor) {
    const at::Tensor data = tensor.contiguous();
    const auto* bytes = static_cast<const std::uint8_t*>(data.data_ptr());
    store_->set(key, std::vector<std::uint8_t>(bytes, bytes + data.nbytes()));
  }

  void take(const std::string& key, const at::Tensor& tensor) {
    // Not wait(), which would keep the store from the rest of the process.
    while (!store_->check({key})) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::vector<std::uint8_t> bytes = store_->get(key);
    at::Tensor data = at::empty_like(tensor, at::MemoryFormat::Contiguous);
    std::memcpy(data.data_ptr(), bytes.data(), std::min(bytes.size(), data.nbytes()));
    at::Tensor(tensor).copy_(data);
  }

  Tensors gathered(const std::string& key, const at::Tensor& tensor) {
    put(key + "/" + std::to_string(getRank()), tensor);
    Tensors all;
    for (int rank = 0; rank < getSize(); ++rank) {
      all.push_back(at::empty_like(tensor));
      take(key + "/" + std::to_string(rank), all.back());
    }
    return all;
  }

  const Ptr<c10d::Store> store_;
  const std::string name_;
  const bool completes_;
  std::atomic<std::uint64_t> collectives_{0};
  std::map<int, int> sent_;
  std::map<int, int> received_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<Ptr<Call>, Steps>> calls_;
  std::map<std::int64_t, c10d::CompletionHook> hooks_;
  bool ending_ = false;
  std::thread thread_;
};

Ptr<c10d::Backend> made(const Ptr<c10d::Store>& store, int rank, int size, const std::string& name,
                        bool completes) {
  return c10::make_intrusive<StoreBackend>(store, rank, size, name, completes);
}

}  // namespace

PYBIND11_MODULE(store_backend, module) {
  module.def("made", &made, pybind11::call_guard<pybind11::gil_scoped_release>());
}
