// Reverse-mode differentiation: a tape of closures. It knows no op by name.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "multihead/core/tensor.h"

namespace multihead {

/// One gradient per input of an op; an undefined tensor stands for zero.
using Gradients = std::vector<Tensor>;

/// Records the ops of this thread while it is alive. Tapes nest: the innermost records.
class Tape {
 public:
  Tape();
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// Adds d(sum(seed · loss))/d(leaf) to .grad() of every leaf that requires a gradient, in the reverse of
  /// the recorded order, and forgets what was recorded. Without a seed, `loss` must have one element. Throws
  /// ShapeError (seed), ValueError (loss was not recorded here, or backward() has forgotten it).
  void backward(const Tensor& loss, Tensor seed = {});

  size_t size() const { return nodes_.size(); }
  static Tape* current();

  /// Takes the gradients of the outputs (undefined: zero) and gives those of the inputs. The closure owns the
  /// gradients it is given and may overwrite one that is_unique().
  using Backward = std::function<Gradients(std::vector<Tensor> d_outputs)>;
  void add(std::vector<std::shared_ptr<GradientSlot>> inputs, std::span<Tensor> outputs, Backward backward);

 private:
  struct Node {
    std::vector<std::shared_ptr<GradientSlot>> inputs;
    std::vector<std::shared_ptr<GradientSlot>> outputs;
    Backward backward;
  };
  std::vector<Node> nodes_;
  Tape* outer_;
};

/// Hides the tape of this thread while alive.
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

/// The same for several outputs: `backward(std::vector<Tensor> d_outputs)`, where those nobody used are
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
