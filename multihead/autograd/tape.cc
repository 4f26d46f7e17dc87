#include "multihead/autograd/tape.h"

#include <algorithm>

#include "multihead/autograd/autocast.h"
#include "multihead/autograd/forgetful-inl.h"
#include "multihead/autograd/pending-inl.h"
#include "multihead/core/error.h"
#include "multihead/core/tensor/gradient_lock-inl.h"
#include "multihead/core/threads/per_thread-inl.h"
#include "multihead/kernels/elementwise/accumulate.h"

namespace multihead {
namespace {

thread_local Tape* active = nullptr;
thread_local const Tape* forgetful = nullptr;
thread_local PerThread<std::vector<Tape*>> alive;  // those that a NoTape hides, too
thread_local int backwards = 0;                    // that run

[[noreturn]] void lost_result() {
  throw ValueError(
      "Tape: an op got a result of another tape, an outer one or one that has ended or whose backward() has "
      "run, so its gradient would be lost; compute it again under this tape, or take its detach() as a "
      "constant");
}

// A result without its tape has nothing left that a gradient could reach, nor a recipe to compute it again.
void make_stale(const std::vector<std::shared_ptr<GradientSlot>>& results) {
  for (const auto& slot : results) slot->tape = nullptr, slot->rebuild = nullptr;
}

// slot += gradient. The first gradient is shared, not copied, but for leaves, whose gradients users read and
// write by pointer; a sum gets memory of its own unless the slot is the only holder.
void accumulate(GradientSlot& slot, Tensor gradient) {
  if (size_of(gradient.dtype()) == 2) gradient = gradient.to(Dtype::f32);
  const std::lock_guard lock(detail::gradient_mutex(slot));  // other threads' tapes may reach this leaf too
  if (!slot.gradient.defined()) {
    const bool owned = gradient.is_unique() && gradient.is_contiguous();
    slot.gradient = slot.leaf && !owned ? gradient.clone() : std::move(gradient);
    return;
  }
  MH_CHECK(slot.gradient.shape() == gradient.shape(), ShapeError, "backward: gradients of shape ",
           slot.gradient.shape(), " and ", gradient.shape(), " accumulate into one tensor");
  gradient = gradient.contiguous();
  if (!slot.gradient.is_unique() || !slot.gradient.is_contiguous()) {
    if (gradient.is_unique()) {
      std::swap(slot.gradient, gradient);
      gradient = gradient.contiguous();
    } else {
      slot.gradient = slot.gradient.clone();
    }
  }
  if (gradient.dtype() == Dtype::f64) {
    kernels::accumulate(slot.gradient.data<double>(), gradient.data<double>(), gradient.numel());
  } else {
    kernels::accumulate(slot.gradient.data<float>(), gradient.data<float>(), gradient.numel());
  }
}

}  // namespace

class Tape::Running {
 public:
  explicit Running(bool& flag) : flag_(flag) {
    flag = true;
    ++backwards;
  }
  ~Running() {
    flag_ = false;
    --backwards;
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  bool& flag_;
};

// The uses of leaves that a backward has not come to yet.
class Tape::OpenUses {
 public:
  OpenUses(const std::vector<Node>& nodes, const LeafComplete& complete) : complete_(complete) {
    if (!complete_) return;
    for (const Node& node : nodes) {
      if (node.inputs.empty()) ++recomputed_;
      for (const auto& slot : node.inputs) {
        if (slot != nullptr && slot->leaf) ++count_[slot.get()];
      }
    }
  }

  void close(const Node& node) {
    if (!complete_) return;
    if (node.inputs.empty()) --recomputed_;
    for (const auto& slot : node.inputs) {
      if (slot != nullptr && slot->leaf && --count_[slot.get()] == 0 && recomputed_ == 0) complete_(*slot);
    }
  }

 private:
  const LeafComplete& complete_;
  std::unordered_map<const GradientSlot*, int64_t> count_;
  int64_t recomputed_ = 0;  // parts that may read any leaf
};

Tape::Tape() : outer_(active) {
  alive->push_back(this);
  active = this;
}
Tape::~Tape() {
  // Tapes nest, but one that ends before those within it must not be found through them.
  if (active == this) active = outer_;
  std::erase(*alive, this);
  for (Tape* inner : *alive) {
    if (inner->outer_ == this) inner->outer_ = outer_;
  }
  for (const Node& node : nodes_) make_stale(node.outputs);
}
Tape* Tape::current() { return active; }

Tensor& Tape::copy_of(const std::shared_ptr<GradientSlot>& leaf) { return copies_[leaf]; }

detail::ForgetfulTape::ForgetfulTape() : outer_(forgetful) { forgetful = &tape_; }
detail::ForgetfulTape::~ForgetfulTape() { forgetful = outer_; }

NoTape::NoTape() : hidden_(active) { active = nullptr; }
NoTape::~NoTape() {
  active = hidden_ != nullptr && std::ranges::find(*alive, hidden_) != alive->end() ? hidden_ : nullptr;
}

void Tape::add(std::vector<std::shared_ptr<GradientSlot>> inputs, std::span<Tensor> outputs,
               Backward backward) {
  for (const auto& slot : inputs) {
    if (slot == nullptr || slot->leaf || this == forgetful) continue;
    // A tape whose backward runs comes to its results after what it calls now, such as a checkpoint's own tape.
    if (slot->tape == nullptr || (slot->tape != this && !slot->tape->runs_backward_)) lost_result();
  }
  Node node{std::move(inputs), {}, std::move(backward)};
  for (Tensor& output : outputs) {
    // An op that returns its input's own handle would put its result into the input's slot.
    if (output.requires_grad()) output = output.detach();
    node.outputs.push_back(std::make_shared<GradientSlot>());
    node.outputs.back()->tape = this;
    output.set_gradient_slot(node.outputs.back());
  }
  if (this == forgetful) return make_stale(node.outputs);
  nodes_.push_back(std::move(node));
}

void Tape::backward(const Tensor& loss, Tensor seed, const LeafComplete& complete) {
  MH_CHECK(loss.requires_grad(), ValueError,
           "backward: the loss does not depend on a tensor that requires a gradient, or was not computed "
           "under a tape");
  const auto& slot = loss.gradient_slot();
  const bool recorded = std::any_of(nodes_.rbegin(), nodes_.rend(), [&](const Node& node) {
    return std::find(node.outputs.begin(), node.outputs.end(), slot) != node.outputs.end();
  });
  MH_CHECK(recorded || slot->leaf, ValueError,
           "backward: the loss was not recorded by this tape, or backward() has already consumed it");
  if (!seed.defined()) {
    MH_CHECK(loss.numel() == 1, ShapeError, "backward: a loss of shape ", loss.shape(), " needs a seed");
    seed = Tensor::ones(loss.shape(), loss.dtype());
  }
  MH_CHECK(seed.shape() == loss.shape(), ShapeError, "backward: seed must be ", loss.shape(), ", got ",
           seed.shape());
  const bool wide = seed.dtype() == detail::arithmetic_dtype(loss.dtype());
  MH_CHECK(wide || seed.dtype() == loss.dtype(), DtypeError, "backward: seed must be ", loss.dtype(),
           " like the loss, got ", seed.dtype());
  const Running running(runs_backward_);
  copies_.clear();
  const NoTape silent;
  const Autocast off(Dtype::f32);
  accumulate(*loss.gradient_slot(), seed.contiguous());
  seed = Tensor();
  OpenUses uses(nodes_, complete);
  for (; !nodes_.empty(); uses.close(nodes_.back()), nodes_.pop_back()) {
    Node& node = nodes_.back();
    make_stale(node.outputs);
    std::vector<Tensor> d_outputs;
    bool reached = false;
    for (const auto& slot : node.outputs) {
      d_outputs.push_back(std::move(slot->gradient));
      slot->gradient = Tensor();
      reached = reached || d_outputs.back().defined();
    }
    if (!reached) continue;
    Gradients gradients = node.backward(std::move(d_outputs));
    MH_CHECK(gradients.size() == node.inputs.size(), ValueError, "backward: an op with ", node.inputs.size(),
             " inputs returned ", gradients.size(), " gradients");
    node.backward = nullptr;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (node.inputs[i] != nullptr && gradients[i].defined()) {
        accumulate(*node.inputs[i], std::move(gradients[i]));
      }
    }
  }
}

// While a backward runs, what it calls may change leaves that are complete.
void detail::refuse_pending_backward(std::string_view who) {
  const bool pending = std::any_of(alive->begin(), alive->end(), [](const Tape* t) { return t->size() > 0; });
  MH_CHECK(
      !pending || backwards > 0, ValueError, who,
      ": a Tape holds operations whose backward() would read what changes here; call backward() first, or "
      "end the Tape");
}

bool is_recording(std::initializer_list<Tensor> inputs) {
  return active != nullptr && std::any_of(inputs.begin(), inputs.end(),
                                          [](const Tensor& x) { return x.defined() && x.requires_grad(); });
}

std::vector<std::shared_ptr<GradientSlot>> detail::gradient_slots(std::initializer_list<Tensor> inputs) {
  std::vector<std::shared_ptr<GradientSlot>> slots;
  for (const Tensor& x : inputs) slots.push_back(x.defined() ? x.gradient_slot() : nullptr);
  return slots;
}

}  // namespace multihead
