// The state of sliced optimisers as that of one, and back.
#include <cstring>
#include <set>

#include "multihead/core/error.h"
#include "multihead/distributed/collectives.h"
#include "multihead/train/data_parallel.h"

namespace multihead::train {
namespace {

constexpr const char* kStep = "step";

// "exp_avg", "exp_avg_sq": what stands before the parameters' names.
std::set<std::string> moments_of(const optim::StateMap& state) {
  std::set<std::string> moments;
  for (const auto& [name, tensor] : state) {
    if (name != kStep) moments.insert(name.substr(0, name.find('.')));
  }
  return moments;
}

}  // namespace

void DataParallel::broadcast_weights() {
  for (const Parameter& p : parameters_)
    group_.broadcast(0, distributed::bytes_of(p.tensor.data<float>(), p.tensor.numel()));
}

optim::StateMap DataParallel::gather_state(const optim::Optimizer& optimizer) const {
  const optim::StateMap own = optimizer.state();
  optim::StateMap whole = {{kStep, own.at(kStep).clone()}};
  for (const std::string& moment : moments_of(own)) {
    const Tensor flat = Tensor::empty({leads() ? weights_ : slice_size(group_.rank())});
    float* at = flat.data<float>();
    for (const auto& [name, view] : own_) {
      const Tensor& slice = own.at(concat(moment, ".", name));
      std::memcpy(at, slice.data<float>(), slice.bytes());
      at += slice.numel();
    }
    if (!leads()) {
      group_.send(0, distributed::bytes_of(flat.data<float>(), flat.numel()));
      continue;
    }
    for (int rank = 1; rank < group_.size(); ++rank) {
      group_.recv(rank, distributed::bytes_of(flat.data<float>() + bounds_[static_cast<size_t>(rank)],
                                              slice_size(rank)));
    }
    for (const Parameter& p : parameters_) {
      whole[concat(moment, ".", p.name)] = flat.as_strided(p.tensor.shape(), p.tensor.strides(), p.begin);
    }
  }
  return leads() ? whole : optim::StateMap();
}

void DataParallel::scatter_state(const optim::StateMap& whole, optim::Optimizer& optimizer) const {
  optim::StateMap own = optimizer.state();
  const std::set<std::string> moments = moments_of(own);
  if (leads()) {
    std::string problems;
    for (const std::string& moment : moments) {
      for (const Parameter& p : parameters_) {
        const auto found = whole.find(concat(moment, ".", p.name));
        if (found == whole.end() || found->second.shape() != p.tensor.shape() ||
            found->second.dtype() != Dtype::f32) {
          problems += concat(problems.empty() ? "" : ", ", moment, ".", p.name);
        }
      }
    }
    MH_CHECK(
        problems.empty() && whole.contains(kStep) && whole.size() == moments.size() * parameters_.size() + 1,
        FormatError, "optimizer state: it belongs to other parameters; missing or of another shape: ",
        problems.empty() ? "nothing, but there are more" : problems);
  }
  auto step = leads() ? static_cast<int64_t>(whole.at(kStep).item()) : 0;
  group_.broadcast(0, std::as_writable_bytes(std::span(&step, 1)));
  own[kStep] = Tensor::of<int64_t>({1}, {step});
  for (const std::string& moment : moments) {
    const Tensor flat = Tensor::empty({leads() ? weights_ : slice_size(group_.rank())});
    if (leads()) {
      for (const Parameter& p : parameters_) {
        const Tensor tensor = whole.at(concat(moment, ".", p.name)).contiguous();
        std::memcpy(flat.data<float>() + p.begin, tensor.data<float>(), tensor.bytes());
      }
      for (int rank = 1; rank < group_.size(); ++rank) {
        group_.send(rank, distributed::bytes_of(flat.data<float>() + bounds_[static_cast<size_t>(rank)],
                                                slice_size(rank)));
      }
    } else {
      group_.recv(0, distributed::bytes_of(flat.data<float>(), flat.numel()));
    }
    for (int64_t at = 0; const auto& [name, view] : own_) {
      own[concat(moment, ".", name)] = flat.as_strided(view.shape(), view.strides(), at);
      at += view.numel();
    }
  }
  optimizer.load_state(own);
}

}  // namespace multihead::train
