// Reverse-mode differentiation: a tape of closures, independent of any op.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "multihead/core/tensor/tensor.h"

namespace multihead {

/// One gradient per input of an op; an undefined tensor stands for zero. Those of 16-bit inputs are f32.
using Gradients = std::vector<Tensor>;

/// Records this thread's ops while it is alive. Tapes nest; the innermost records, and refuses results of the others.
class Tape {
 public:
  Tape();
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// Accumulates d(sum(seed · loss))/d(leaf) into .grad() of every leaf that requires a gradient, in reverse
  /// order, and clears the tape. Without a seed, `loss` must have one element. Throws ShapeError and DtypeError (seed),
  /// ValueError (loss was not recorded here, or backward() has already consumed it).
  ///
  /// `complete` is called for each leaf once its gradient is final, and may move the gradient away, while the
  /// backward continues. It is not called for leaves that a checkpoint() part may still reach.
  using LeafComplete = std::function<void(const GradientSlot& leaf)>;
  void backward(const Tensor& loss, Tensor seed = {}, const LeafComplete& complete = {});

  size_t size() const { return nodes_.size(); }
  static Tape* current();

  /// Maps gradients of the outputs (undefined: zero) to gradients of the inputs. The closure owns its
  /// arguments and may overwrite one that is_unique().
  using Backward = std::function<Gradients(std::vector<Tensor> d_outputs)>;
  void add(std::vector<std::shared_ptr<GradientSlot>> inputs, std::span<Tensor> outputs, Backward backward);

  /// Where ops keep a leaf's copy in another type between its uses, undefined at first. Until backward().
  Tensor& copy_of(const std::shared_ptr<GradientSlot>& leaf);

 private:
  struct Node {
    std::vector<std::shared_ptr<GradientSlot>> inputs;
    std::vector<std::shared_ptr<GradientSlot>> outputs;
    Backward backward;
  };
  class OpenUses;
  class Running;
  std::vector<Node> nodes_;
  std::unordered_map<std::shared_ptr<GradientSlot>, Tensor> copies_;
  Tape* outer_;
  bool runs_backward_ = false;
};

/// Disables recording on this thread while alive.
class NoTape {
 public:
  NoTape();
  ~NoTape();
  NoTape(const NoTape&) = delete;
  NoTape& operator=(const NoTape&) = delete;

 private:
  Tape* hidden_;
};

/// True if a tape is active and one of the inputs requires a gradient (undefined inputs do not).
bool is_recording(std::initializer_list<Tensor> inputs);

namespace detail {
std::vector<std::shared_ptr<GradientSlot>> gradient_slots(std::initializer_list<Tensor> inputs);
}

/// Declares `output` = op(inputs). `backward(d_output)` returns one gradient per input, in order; it should
/// capture detached tensors only. Returns `output`, which requires a gradient if recording.
template <class F>
Tensor record(std::initializer_list<Tensor> inputs, Tensor output, F&& backward) {
  if (is_recording(inputs)) {
    Tape::current()->add(detail::gradient_slots(inputs), {&output, 1},
                         [f = std::forward<F>(backward)](std::vector<Tensor> d_outputs) mutable -> Gradients {
                           return f(std::move(d_outputs[0]));
                         });
  }
  return output;
}

/// The same for several outputs: `backward(std::vector<Tensor> d_outputs)`; gradients of unused outputs are
/// undefined.
template <class F>
std::vector<Tensor> record_many(std::initializer_list<Tensor> inputs, std::vector<Tensor> outputs,
                                F&& backward) {
  if (is_recording(inputs)) {
    Tape::current()->add(detail::gradient_slots(inputs), outputs, std::forward<F>(backward));
  }
  return outputs;
}

}  // namespace multihead
