// Cross-entropy of rows of logits and, in the same passes, its gradient.
#pragma once

#include <cstdint>

namespace multihead::kernels {

/// losses[i] = log(sum(exp(x))) - (1 - s) x[target] - s · mean(x) for row x of logits, 0 if its target is
/// ignored; d_logits = scale · (softmax(x) - (1 - s) onehot(target) - s/classes), 0 if ignored.
template <class T>
struct CrossEntropyArgs {
  const T* logits = nullptr;
  const int64_t* targets = nullptr;  ///< in [0, classes) or ignore_index
  int64_t rows = 0, classes = 0;
  int64_t ignore_index = -100;
  double smoothing = 0;
  T* losses = nullptr;    ///< [rows]
  T* d_logits = nullptr;  ///< null, or [rows, classes]; may be logits
  double scale = 1;
};
void cross_entropy(const CrossEntropyArgs<float>& args);
void cross_entropy(const CrossEntropyArgs<double>& args);

}  // namespace multihead::kernels
