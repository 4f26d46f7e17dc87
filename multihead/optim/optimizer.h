// Base class of optimisers: gradients, their norm, the learning rate, saving and loading.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "multihead/optim/parameters.h"

namespace multihead::optim {

/// Named tensors, in io's format.
using StateMap = std::map<std::string, Tensor>;

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Updates every parameter that requires and has a gradient; gradients are kept. Applies the clipping set
  /// by clip_grad_norm() since the last step. Throws ShapeError, DtypeError (a gradient that does not match
  /// its parameter), ValueError (a Tape of this thread holds operations that no backward() has consumed) before
  /// anything is changed.
  void step();
  /// Clears the gradients.
  void zero_grad();

  /// √(Σ g²) over all gradients, summed in f64 in a fixed order.
  /// Throws    NumericError naming the first parameter whose gradient holds NaN or Inf
  double grad_norm() const;
  /// Makes the next step() use gradients · min(1, max_norm / (norm + 1e-6)) and returns the norm. The
  /// gradients themselves are not scaled, which saves a pass over memory.
  /// Throws    NumericError as grad_norm(), ValueError unless max_norm > 0
  double clip_grad_norm(double max_norm);
  /// The same for a norm known already, as that of gradients of which these are a part.
  /// Throws    NumericError for NaN or Inf, ValueError for a negative norm or unless max_norm > 0
  void clip_to(double norm, double max_norm);

  double lr() const { return lr_; }
  /// Throws ValueError unless lr is finite and not negative.
  void set_lr(double lr);
  /// Steps taken.
  int64_t steps() const { return steps_; }
  const ParameterList& parameters() const { return parameters_; }

  /// Moments by "<what>.<parameter>" and "step". The tensors are the optimiser's own memory: write them, or
  /// clone them, before the next step.
  StateMap state() const;
  /// Throws FormatError listing missing, unexpected and mis-shaped names; nothing is changed then.
  void load_state(const StateMap& state);

 protected:
  Optimizer(ParameterList parameters, double lr, std::vector<std::string> moment_names);

  struct Update {
    size_t index;  ///< of the parameter
    int64_t step;  ///< from 1
    double lr;
    double grad_scale;
  };
  virtual void update(const Update& update) = 0;
  /// The weight decay of parameter `index`.
  template <class Options>
  double decay_of(const Options& options, size_t index) const {
    return options.decay_vectors || parameters_[index].tensor.rank() >= 2 ? options.weight_decay : 0;
  }
  /// Moment `which` (as in moment_names) of parameter `index`.
  const Tensor& moment(size_t which, size_t index) const { return moments_[which][index]; }

 private:
  bool has_gradient(size_t index) const;

  ParameterList parameters_;
  double lr_ = 0;
  double grad_scale_ = 1;
  int64_t steps_ = 0;
  std::vector<std::string> moment_names_;
  std::vector<std::vector<Tensor>> moments_;
};

}  // namespace multihead::optim
