#include "multihead/autograd/custom_op.h"

#include <algorithm>
#include <utility>

#include "multihead/core/error.h"

namespace multihead {
namespace {

std::vector<Tensor> detached(const std::vector<Tensor>& given, const char* what) {
  std::vector<Tensor> plain;
  for (size_t i = 0; i < given.size(); ++i) {
    MH_CHECK(given[i].defined(), ValueError, "custom_op: ", what, " ", i, " is undefined");
    plain.push_back(given[i].detach());
  }
  return plain;
}

Gradients checked(Gradients gradients, const std::vector<Tensor>& inputs) {
  MH_CHECK(gradients.size() == inputs.size(), ValueError,
           "custom_op: backward must return one gradient per input, ", inputs.size(), ", got ",
           gradients.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const Dtype dtype = detail::arithmetic_dtype(inputs[i].dtype());
    MH_CHECK(gradients[i].shape() == inputs[i].shape(), ShapeError, "custom_op: the gradient of input ", i,
             " must be ", inputs[i].shape(), ", got ", gradients[i].shape());
    MH_CHECK(gradients[i].dtype() == dtype, DtypeError, "custom_op: the gradient of input ", i, " must be ",
             dtype, ", got ", gradients[i].dtype());
    gradients[i] = gradients[i].detach();
  }
  return gradients;
}

}  // namespace

std::vector<Tensor> custom_op(const std::vector<Tensor>& inputs, const CustomForward& forward,
                              CustomBackward backward) {
  MH_CHECK(forward != nullptr && backward != nullptr, ValueError,
           "custom_op: it needs a forward and a backward");
  std::vector<Tensor> plain = detached(inputs, "input"), results;
  {
    const NoTape silent;
    results = detached(forward(plain), "result");
  }
  std::vector<std::shared_ptr<GradientSlot>> slots;
  for (const Tensor& x : inputs) slots.push_back(x.requires_grad() ? x.gradient_slot() : nullptr);
  const bool learns =
      std::any_of(slots.begin(), slots.end(), [](const auto& slot) { return slot != nullptr; });
  if (Tape::current() == nullptr || !learns) return results;

  std::vector<size_t> places;  // of the results that have gradients
  std::vector<Tensor> recorded;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!is_floating(results[i].dtype())) continue;
    places.push_back(i);
    recorded.push_back(results[i].detach());
  }
  Tape::current()->add(std::move(slots), recorded,
                       [plain = std::move(plain), results, places,
                        backward = std::move(backward)](const std::vector<Tensor>& given) -> Gradients {
                         const NoTape silent;
                         std::vector<Tensor> d_results(results.size());
                         for (size_t i = 0; i < places.size(); ++i) d_results[places[i]] = given[i];
                         return checked(backward(d_results, plain, results), plain);
                       });
  for (size_t i = 0; i < places.size(); ++i) results[places[i]] = recorded[i];
  return results;
}

}  // namespace multihead
