#include "multihead/optim/sgd.h"

#include <cmath>

#include "multihead/core/error.h"
#include "multihead/kernels/elementwise/optimizer.h"

namespace multihead::optim {
namespace {

std::vector<std::string> moment_names(const SgdOptions& options) {
  if (options.momentum == 0) return {};
  return {"momentum_buffer"};
}

}  // namespace

SGD::SGD(ParameterList parameters, const SgdOptions& options)
    : Optimizer(std::move(parameters), options.lr, moment_names(options)), options_(options) {
  MH_CHECK(options.momentum >= 0 && options.momentum < 1, ValueError, "SGD: momentum must be in [0, 1), got ",
           options.momentum);
  MH_CHECK(options.weight_decay >= 0 && std::isfinite(options.weight_decay), ValueError,
           "SGD: weight_decay must be finite and not negative, got ", options.weight_decay);
  MH_CHECK(!options.nesterov || options.momentum > 0, ValueError, "SGD: nesterov needs momentum");
}

void SGD::update(const Update& u) {
  const Tensor& parameter = parameters()[u.index].tensor;
  const kernels::SgdArgs args{.lr = u.lr,
                              .momentum = options_.momentum,
                              .weight_decay = decay_of(options_, u.index),
                              .nesterov = options_.nesterov,
                              .first = u.step == 1,
                              .grad_scale = u.grad_scale};
  auto run = [&]<class T>(T) {
    T* const buffer = options_.momentum == 0 ? nullptr : moment(0, u.index).data<T>();
    kernels::sgd_step(
        kernels::SgdState<T>{parameter.data<T>(), parameter.grad().data<T>(), buffer, parameter.numel()},
        args);
  };
  parameter.dtype() == Dtype::f32 ? run(0.0f) : run(0.0);
}

}  // namespace multihead::optim
