#include "multihead/optim/optimizer.h"

#include <cmath>

#include "multihead/autograd/pending-inl.h"
#include "multihead/core/error.h"
#include "multihead/kernels/elementwise/optimizer.h"

namespace multihead::optim {
namespace {

double sum_of_squares(const Tensor& x) {
  if (x.dtype() == Dtype::f32) return kernels::sum_of_squares(x.data<float>(), x.numel());
  return kernels::sum_of_squares(x.data<double>(), x.numel());
}

void append_line(std::string& problems, const std::string& line) {
  if (!problems.empty()) problems += "; ";
  problems += line;
}

}  // namespace

Optimizer::Optimizer(ParameterList parameters, double lr, std::vector<std::string> moment_names)
    : parameters_(std::move(parameters)), moment_names_(std::move(moment_names)) {
  set_lr(lr);
  for (size_t which = 0; which < moment_names_.size(); ++which) {
    std::vector<Tensor>& row = moments_.emplace_back();
    for (const auto& item : parameters_.items()) row.push_back(zeros_like(item.tensor));
  }
}

void Optimizer::set_lr(double lr) {
  MH_CHECK(std::isfinite(lr) && lr >= 0, ValueError, "optimizer: lr must be finite and not negative, got ",
           lr);
  lr_ = lr;
}

bool Optimizer::has_gradient(size_t index) const {
  const Tensor& tensor = parameters_[index].tensor;
  return tensor.requires_grad() && tensor.grad().defined();
}

void Optimizer::step() {
  multihead::detail::refuse_pending_backward("optimizer: step()");
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!has_gradient(i)) continue;
    const auto& [name, tensor] = parameters_[i];
    const Tensor gradient = tensor.grad();
    MH_CHECK(gradient.shape() == tensor.shape(), ShapeError, "optimizer: the gradient of ", name, " must be ",
             tensor.shape(), ", got ", gradient.shape());
    MH_CHECK(gradient.dtype() == tensor.dtype(), DtypeError, "optimizer: the gradient of ", name, " must be ",
             tensor.dtype(), ", got ", gradient.dtype());
    if (!gradient.is_contiguous()) tensor.set_grad(gradient.contiguous());
  }
  ++steps_;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (has_gradient(i)) update({.index = i, .step = steps_, .lr = lr_, .grad_scale = grad_scale_});
  }
  grad_scale_ = 1;
}

void Optimizer::zero_grad() {
  for (const auto& item : parameters_.items()) {
    if (item.tensor.requires_grad()) item.tensor.set_grad({});
  }
  grad_scale_ = 1;
}

double Optimizer::grad_norm() const {
  double total = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!has_gradient(i)) continue;
    const double squares = sum_of_squares(parameters_[i].tensor.grad().contiguous());
    MH_CHECK(std::isfinite(squares), NumericError, "the gradient of ", parameters_[i].name,
             " holds NaN or Inf");
    total += squares;
  }
  return std::sqrt(total);
}

double Optimizer::clip_grad_norm(double max_norm) {
  MH_CHECK(max_norm > 0, ValueError, "clip_grad_norm: max_norm must be positive, got ", max_norm);
  const double norm = grad_norm();
  clip_to(norm, max_norm);
  return norm;
}

void Optimizer::clip_to(double norm, double max_norm) {
  MH_CHECK(max_norm > 0, ValueError, "clip_to: max_norm must be positive, got ", max_norm);
  MH_CHECK(std::isfinite(norm), NumericError, "clip_to: the norm of the gradients is ", norm);
  MH_CHECK(norm >= 0, ValueError, "clip_to: norm must not be negative, got ", norm);
  grad_scale_ = std::min(1.0, max_norm / (norm + 1e-6));
}

StateMap Optimizer::state() const {
  StateMap state = {{"step", Tensor::of<int64_t>({1}, {steps_})}};
  for (size_t which = 0; which < moments_.size(); ++which) {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      state[moment_names_[which] + "." + parameters_[i].name] = moments_[which][i];
    }
  }
  return state;
}

void Optimizer::load_state(const StateMap& state) {
  const StateMap own = this->state();
  std::string problems;
  for (const auto& [name, tensor] : own) {
    const auto found = state.find(name);
    if (found == state.end()) {
      append_line(problems, "missing " + name);
    } else if (found->second.shape() != tensor.shape() || found->second.dtype() != tensor.dtype()) {
      append_line(problems, concat(name, " must be ", tensor.dtype(), " ", tensor.shape(), ", got ",
                                   found->second.dtype(), " ", found->second.shape()));
    }
  }
  for (const auto& [name, tensor] : state) {
    if (!own.contains(name)) append_line(problems, "unexpected " + name);
  }
  MH_CHECK(problems.empty(), FormatError, "optimizer state: belongs to different parameters: ", problems);
  const auto step = static_cast<int64_t>(state.at("step").item());
  MH_CHECK(step >= 0, FormatError, "optimizer state: step must not be negative, got ", step);
  for (const auto& [name, tensor] : own) {
    if (name != "step") tensor.copy_from(state.at(name));
  }
  steps_ = step;
}

}  // namespace multihead::optim
