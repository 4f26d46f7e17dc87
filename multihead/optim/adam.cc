#include "multihead/optim/adam.h"

#include <cmath>

#include "multihead/core/error.h"
#include "multihead/kernels/elementwise/optimizer.h"

namespace multihead::optim {
namespace {

template <class Options>
Options checked(const char* who, const Options& o) {
  MH_CHECK(o.beta1 >= 0 && o.beta1 < 1, ValueError, who, ": beta1 must be in [0, 1), got ", o.beta1);
  MH_CHECK(o.beta2 >= 0 && o.beta2 < 1, ValueError, who, ": beta2 must be in [0, 1), got ", o.beta2);
  MH_CHECK(o.eps >= 0 && std::isfinite(o.eps), ValueError, who, ": eps must be finite and not negative, got ",
           o.eps);
  MH_CHECK(o.weight_decay >= 0 && std::isfinite(o.weight_decay), ValueError, who,
           ": weight_decay must be finite and not negative, got ", o.weight_decay);
  return o;
}

template <class T>
void run(const Tensor& parameter, const Tensor& m, const Tensor& v, const kernels::AdamArgs& args) {
  kernels::adam_step(kernels::AdamState<T>{parameter.data<T>(), parameter.grad().template data<T>(),
                                           m.data<T>(), v.data<T>(), parameter.numel()},
                     args);
}

void run_any(const Tensor& parameter, const Tensor& m, const Tensor& v, const kernels::AdamArgs& args) {
  parameter.dtype() == Dtype::f32 ? run<float>(parameter, m, v, args) : run<double>(parameter, m, v, args);
}

}  // namespace

Adam::Adam(ParameterList parameters, const AdamOptions& options)
    : Optimizer(std::move(parameters), options.lr, {"exp_avg", "exp_avg_sq"}),
      options_(checked("Adam", options)) {}

void Adam::update(const Update& u) {
  run_any(parameters()[u.index].tensor, moment(0, u.index), moment(1, u.index),
          {.lr = u.lr,
           .beta1 = options_.beta1,
           .beta2 = options_.beta2,
           .eps = options_.eps,
           .weight_decay = decay_of(options_, u.index),
           .decoupled = false,
           .eps_hat = options_.eps_hat,
           .step = u.step,
           .grad_scale = u.grad_scale});
}

AdamW::AdamW(ParameterList parameters, const AdamWOptions& options)
    : Optimizer(std::move(parameters), options.lr, {"exp_avg", "exp_avg_sq"}),
      options_(checked("AdamW", options)) {}

void AdamW::update(const Update& u) {
  run_any(parameters()[u.index].tensor, moment(0, u.index), moment(1, u.index),
          {.lr = u.lr,
           .beta1 = options_.beta1,
           .beta2 = options_.beta2,
           .eps = options_.eps,
           .weight_decay = decay_of(options_, u.index),
           .decoupled = true,
           .eps_hat = options_.eps_hat,
           .step = u.step,
           .grad_scale = u.grad_scale});
}

}  // namespace multihead::optim
