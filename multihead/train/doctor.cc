#include "multihead/train/doctor.h"

#include <algorithm>
#include <cmath>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/parallel.h"
#include "multihead/nn/module.h"
#include "multihead/train/doctor-inl.h"

namespace multihead::train {
namespace {

using models::LanguageModel;

// x[row, begin:end, :] of a [B, T, V] tensor.
Tensor rows(const Tensor& x, int64_t row, int64_t begin, int64_t end) {
  const Shape& s = x.strides();
  return x.as_strided({end - begin, x.size(2)}, {s[1], s[2]}, row * s[0] + begin * s[1]);
}

Tensor random_tokens(int64_t batch, int64_t length, int64_t vocabulary, RandomStream stream) {
  Tensor tokens = Tensor::empty({batch, length}, Dtype::i64);
  const auto ids = tokens.span<int64_t>();
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = stream.bits(i) % static_cast<uint64_t>(vocabulary);
  return tokens;
}

class Doctor {
 public:
  Doctor(const LanguageModel& model, const DoctorOptions& options)
      : model_(model), options_(options), rng_(options.seed) {
    length_ = std::min(options.length, model.config().context);
    vocabulary_ = model.config().vocab_size;
    MH_CHECK(length_ >= 1, ValueError, "check: length must be positive, got ", options.length);
  }

  std::vector<CheckResult> run() {
    CheckList checks(options_);
    checks.run("finite", [&](CheckResult& r) { finite(r); });
    checks.run("causality", [&](CheckResult& r) { causality(r); });
    checks.run("padding", [&](CheckResult& r) { padding(r); });
    checks.run("cache", [&](CheckResult& r) { cache(r); });
    checks.run("threads", [&](CheckResult& r) { threads(r); });
    checks.run("gradient", [&](CheckResult& r) { gradient(r); });
    checks.run("overfit", [&](CheckResult& r) { overfit(r); });
    return checks.take();
  }

 private:
  Tensor tokens(int64_t batch, int64_t length) {
    return random_tokens(batch, length, vocabulary_, rng_.next());
  }

  void finite(CheckResult& r) {
    const Tensor x = tokens(2, length_);
    const double loss = model_.loss(x, tokens(2, length_)).item();
    const auto logits = model_(x).to_vector<double>();
    const bool numbers = std::all_of(logits.begin(), logits.end(), [](double v) { return std::isfinite(v); });
    r.passed = numbers && std::isfinite(loss);
    r.detail = concat("loss of random tokens ", loss,
                      " (uniform guessing: ", std::log(static_cast<double>(vocabulary_)), ")");
  }

  void causality(CheckResult& r) {
    const Tensor x = tokens(1, length_);
    const Tensor before = model_(x);
    int64_t leaks = 0;
    for (int64_t t = 1; t < length_; t += std::max<int64_t>(1, length_ / 6)) {
      const Tensor changed = x.clone();
      int64_t& token = changed.data<int64_t>()[t];
      token = (token + 1) % vocabulary_;
      leaks += same_bits(rows(before, 0, 0, t), rows(model_(changed), 0, 0, t)) ? 0 : 1;
    }
    r.passed = leaks == 0;
    r.detail = leaks == 0 ? "later tokens change no earlier logit"
                          : concat(leaks, " later tokens changed earlier logits");
  }

  void padding(CheckResult& r) {
    const Tensor batch = tokens(3, length_);
    const Tensor together = model_(batch);
    const int64_t part = std::max<int64_t>(1, length_ - 5);
    bool same = true;
    for (int64_t b = 0; b < 3; ++b) {
      const Tensor alone = batch.as_strided({1, part}, {part, 1}, b * length_).contiguous();
      same = same && same_bits(rows(model_(alone), 0, 0, part), rows(together, b, 0, part));
    }
    r.passed = same;
    r.detail = same ? "a row is bitwise equal alone and in a batch of longer rows"
                    : "a row depends on its neighbours";
  }

  void cache(CheckResult& r) {
    const Tensor x = tokens(2, length_);
    const Tensor whole = model_(x);
    double worst = 0;
    bool same = true;
    for (const int64_t chunk : {int64_t{1}, int64_t{5}}) {
      nn::DecodeState state = model_.make_state(2, length_);
      for (int64_t t = 0; t < length_; t += chunk) {
        const int64_t count = std::min(chunk, length_ - t);
        const Tensor logits =
            model_(x.as_strided({2, count}, {length_, 1}, t).contiguous(), {.state = &state});
        for (int64_t b = 0; b < 2; ++b) {
          const Tensor cached = rows(logits, b, 0, count), full = rows(whole, b, t, t + count);
          worst = std::max(worst, largest_difference(cached, full));
          same = same && same_bits(cached, full);
        }
      }
    }
    r.passed = same;
    r.detail = same ? "token by token and in chunks of 5: bitwise equal to the whole"
                    : concat("logits differ by ", worst);
  }

  std::vector<Tensor> gradients(LanguageModel& model, const Tensor& x, const Tensor& y) {
    const auto parameters = nn::parameters(model);
    nn::zero_grad(parameters);
    Tape tape;
    tape.backward(model.loss(x, y));
    std::vector<Tensor> result;
    for (const Tensor& parameter : parameters) result.push_back(parameter.grad());
    nn::zero_grad(parameters);
    return result;
  }

  void threads(CheckResult& r) {
    const ThreadScope scope;
    LanguageModel copy = nn::clone(model_);
    const Tensor x = tokens(3, length_), y = tokens(3, length_);
    std::vector<Tensor> reference;
    int64_t different = 0;
    for (const int count : {1, 2, 3}) {
      set_num_threads(count);
      std::vector<Tensor> now = gradients(copy, x, y);
      for (size_t i = 0; i < reference.size(); ++i) {
        different += reference[i].defined() && !same_bits(reference[i], now[i]) ? 1 : 0;
      }
      if (reference.empty()) reference = std::move(now);
    }
    r.passed = different == 0;
    r.detail = different == 0 ? "gradients on 1, 2 and 3 threads have the same bits"
                              : concat(different, " gradients depend on the number of threads");
  }

  // One random direction per tensor: (L(w + εd) - L(w - εd)) / 2ε against ⟨g, d⟩.
  void gradient(CheckResult& r) {
    LanguageModel copy = nn::clone(model_);
    nn::to(copy, Dtype::f64);
    const int64_t length = std::min<int64_t>(length_, 8);
    const Tensor x = tokens(1, length), y = tokens(1, length);
    const std::vector<Tensor> analytic = gradients(copy, x, y);
    const auto parameters = nn::named_parameters(copy);
    double worst = 0;
    std::string worst_name;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto [numeric, exact] = directional(copy, parameters[i].tensor, analytic[i], x, y);
      const double error =
          std::abs(numeric - exact) / std::max(1e-4, std::max(std::abs(numeric), std::abs(exact)));
      if (!(error <= worst)) {
        worst = error;
        worst_name = parameters[i].name;
      }
    }
    r.passed = worst < 1e-4;
    r.detail =
        concat("largest relative error ", worst, " (", worst_name, "), ", parameters.size(), " tensors");
  }

  std::pair<double, double> directional(LanguageModel& model, const Tensor& parameter, const Tensor& gradient,
                                        const Tensor& x, const Tensor& y) {
    const Tensor direction = randn(parameter.shape(), rng_, Dtype::f64);
    const Tensor before = parameter.clone();
    const double epsilon = 1e-5;
    const auto loss_at = [&](double step) {
      const auto w = parameter.span<double>(), w0 = before.span<double>(), d = direction.span<double>();
      for (size_t i = 0; i < w.size(); ++i) w[i] = w0[i] + step * d[i];
      return model.loss(x, y).item();
    };
    const double numeric = (loss_at(epsilon) - loss_at(-epsilon)) / (2 * epsilon);
    parameter.copy_from(before);
    double exact = 0;
    if (gradient.defined()) {
      const auto g = gradient.to_vector<double>(), d = direction.to_vector<double>();
      for (size_t i = 0; i < g.size(); ++i) exact += g[i] * d[i];
    }
    return {numeric, exact};
  }

  void overfit(CheckResult& r) {
    LanguageModel copy = nn::clone(model_);
    const int64_t length = std::min<int64_t>(length_, 16);
    const Tensor x = tokens(2, length), y = tokens(2, length);
    learn_by_heart(r, nn::parameters(copy), 2 * length, [&] { return copy.loss(x, y); });
  }

  const LanguageModel& model_;
  const DoctorOptions& options_;
  Rng rng_;
  int64_t length_ = 0, vocabulary_ = 0;
};

}  // namespace

std::vector<CheckResult> check_language_model(const models::LanguageModel& model,
                                              const DoctorOptions& options) {
  return Doctor(model, options).run();
}

}  // namespace multihead::train
