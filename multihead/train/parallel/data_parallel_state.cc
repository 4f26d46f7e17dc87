// The state of sliced optimisers as that of one, and back.
#include <algorithm>
#include <cstring>

#include "multihead/core/error.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/distributed/collectives.h"
#include "multihead/train/parallel/data_parallel.h"

namespace multihead::train {
namespace {

constexpr const char* kStep = "step";

// "exp_avg", "exp_avg_sq": what precedes the parameters' names.
std::set<std::string> moments_of(const optim::StateMap& state) {
  std::set<std::string> moments;
  for (const auto& [name, tensor] : state) {
    if (name != kStep) moments.insert(name.substr(0, name.find('.')));
  }
  return moments;
}

// Returns the end of the copy.
float* copied(float* to, const Tensor& from) {
  std::memcpy(to, from.data<float>(), from.bytes());
  return to + from.numel();
}

}  // namespace

void broadcast_weights(distributed::Group& group, const std::vector<nn::NamedTensor>& weights) {
  for (const auto& [name, tensor] : weights)
    group.broadcast(0, distributed::bytes_of(tensor.data<float>(), tensor.numel()));
}

void DataParallel::broadcast_weights() {
  std::vector<nn::NamedTensor> all;
  for (const Parameter& p : parameters_) all.push_back({p.name, p.tensor});
  train::broadcast_weights(group_, all);
}

optim::StateMap DataParallel::gather_state(const optim::Optimizer& optimizer) const {
  const optim::StateMap own = optimizer.state();
  optim::StateMap whole = {{kStep, own.at(kStep).clone()}};
  const std::vector<int64_t> bounds = packed_bounds();
  for (const std::string& moment : moments_of(own)) {
    const auto named = [&](const std::string& name) { return concat(moment, ".", name); };
    if (leads()) {
      for (const Parameter& p : parameters_) whole[named(p.name)] = Tensor::empty(p.tensor.shape());
    }
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (!leads() && rank != group_.rank()) continue;
      const auto at = static_cast<size_t>(rank);
      const Tensor packed = Tensor::empty({bounds[at + 1] - bounds[at]});
      float* next = packed.data<float>();
      if (rank == group_.rank()) {
        for (const auto& [name, view] : own_) next = copied(next, own.at(named(name)));
      }
      if (rank > 0 && leads()) group_.recv(rank, distributed::bytes_of(next, packed.numel()));
      if (rank > 0 && !leads()) group_.send(0, distributed::bytes_of(packed.data<float>(), packed.numel()));
      if (!leads()) continue;
      next = packed.data<float>();
      for (const Range& range : ranges_[at]) {
        float* const to = whole[named(parameters_[range.parameter].name)].data<float>() + range.begin;
        std::copy_n(next, range.size(), to);
        next += range.size();
      }
    }
  }
  return leads() ? whole : optim::StateMap();
}

void DataParallel::check_state(const optim::StateMap& whole, const std::set<std::string>& moments) const {
  Enumeration problems;
  for (const std::string& moment : moments) {
    for (const Parameter& p : parameters_) {
      const auto found = whole.find(concat(moment, ".", p.name));
      if (found == whole.end() || found->second.shape() != p.tensor.shape() ||
          found->second.dtype() != Dtype::f32) {
        problems.add(moment, ".", p.name);
      }
    }
  }
  MH_CHECK(
      problems.empty() && whole.contains(kStep) && whole.size() == moments.size() * parameters_.size() + 1,
      FormatError, "optimizer state: belongs to different parameters; missing or of a different shape: ",
      problems.empty() ? "nothing, but there are more" : problems.text());
}

void DataParallel::scatter_state(const optim::StateMap& whole, optim::Optimizer& optimizer) const {
  optim::StateMap own = optimizer.state();
  const std::set<std::string> moments = moments_of(own);
  if (leads()) check_state(whole, moments);
  auto step = leads() ? static_cast<int64_t>(whole.at(kStep).item()) : 0;
  group_.broadcast(0, std::as_writable_bytes(std::span(&step, 1)));
  own[kStep] = Tensor::of<int64_t>({1}, {step});
  const std::vector<int64_t> bounds = packed_bounds();
  for (const std::string& moment : moments) {
    const auto named = [&](const std::string& name) { return concat(moment, ".", name); };
    // The leader's own slice comes last and stays.
    Tensor packed;
    for (int rank = group_.size() - 1; rank >= 0; --rank) {
      if (!leads() && rank != group_.rank()) continue;
      const auto at = static_cast<size_t>(rank);
      packed = Tensor::empty({bounds[at + 1] - bounds[at]});
      float* next = packed.data<float>();
      if (leads()) {
        for (const Range& range : ranges_[at]) {
          const Tensor from = whole.at(named(parameters_[range.parameter].name)).contiguous();
          next = copied(next, from.as_strided({range.size()}, {1}, range.begin));
        }
      }
      const auto bytes = distributed::bytes_of(packed.data<float>(), packed.numel());
      if (rank > 0) leads() ? group_.send(rank, bytes) : group_.recv(0, bytes);
    }
    for (int64_t at = 0; const auto& [name, view] : own_) {
      own[named(name)] = packed.as_strided(view.shape(), view.strides(), at);
      at += view.numel();
    }
  }
  optimizer.load_state(own);
}

}  // namespace multihead::train
