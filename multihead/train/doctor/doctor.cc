#include "multihead/train/doctor/doctor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/models/packed_seq2seq.h"
#include "multihead/nn/module.h"
#include "multihead/ops/shape.h"
#include "multihead/optim/adam.h"
#include "multihead/train/doctor/doctor-inl.h"

namespace multihead::train {
namespace {

using namespace detail;  // NOLINT(google-build-using-namespace): the checks' own internals
using models::LanguageModel, models::Seq2Seq, models::TokenBatch;
using Logits = std::function<Tensor(const Tensor& tokens)>;

// Another token in one place of every row.
Tensor changed(const Tensor& tokens, int64_t at, int64_t vocabulary) {
  Tensor other = tokens.clone();
  for (int64_t row = 0; row < tokens.size(0); ++row) {
    int32_t& token = other.data<int32_t>()[row * tokens.size(1) + at];
    token = static_cast<int32_t>((token + 1) % vocabulary);
  }
  return other;
}

// How many of every `stride`-th token change logits before them.
int64_t count_leaks(const Tensor& tokens, int64_t vocabulary, int64_t stride, const Logits& logits) {
  const Tensor before = logits(tokens);
  int64_t leaks = 0;
  for (int64_t at = 1; at < tokens.size(1); at += stride) {
    const Tensor after = logits(changed(tokens, at, vocabulary));
    leaks += same_bits(slice(before, 1, 0, at), slice(after, 1, 0, at)) ? 0 : 1;
  }
  return leaks;
}

struct Cached {
  bool same = true;
  double largest = 0;  // difference
};

// `step` gives the logits of `chunk` tokens more; together they are to be `whole`, those of all at once.
void compare_steps(Cached& cached, const Tensor& tokens, const Tensor& whole, int64_t chunk,
                   const Logits& step) {
  for (int64_t begin = 0; begin < tokens.size(1); begin += chunk) {
    const int64_t end = std::min(begin + chunk, tokens.size(1));
    const Tensor logits = step(slice(tokens, 1, begin, end).contiguous()), full = slice(whole, 1, begin, end);
    cached.same = cached.same && same_bits(logits, full);
    cached.largest = std::max(cached.largest, largest_difference(logits, full));
  }
}

// Whether a few steps of AdamW overfit one batch of random tokens.
void overfit_batch(CheckResult& r, const std::vector<Tensor>& parameters, int64_t tokens,
                   const Loss& loss_of_batch) {
  optim::AdamW optimizer(parameters, {.lr = 1e-3, .weight_decay = 0});
  double first = 0, last = 0;
  int64_t steps = 0;
  for (; steps < 300; ++steps) {
    Tape tape;
    const Tensor loss = loss_of_batch();
    last = loss.item();
    if (steps == 0) first = last;
    if (last < 0.05 * first) break;
    tape.backward(loss);
    optimizer.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
  }
  r.passed = last < 0.1 * first;
  r.detail = concat("loss ", first, " -> ", last, " in ", steps, " steps on ", tokens, " random tokens");
}

class LanguageModelDoctor {
 public:
  LanguageModelDoctor(const LanguageModel& model, const DoctorOptions& options)
      : model_(model),
        rng_(options.seed),
        length_(checked_length(options, model.config().context)),
        vocabulary_(model.config().vocab_size) {}

  void finite(CheckResult& r) {
    const Tensor x = tokens(2, length_);
    const double loss = model_.loss(x, tokens(2, length_)).item();
    r.passed = is_finite(model_(x), loss);
    r.detail = concat("loss of random tokens ", loss,
                      " (uniform guessing: ", std::log(static_cast<double>(vocabulary_)), ")");
  }

  void causality(CheckResult& r) {
    const int64_t leaks = count_leaks(tokens(1, length_), vocabulary_, std::max<int64_t>(1, length_ / 6),
                                      [&](const Tensor& x) { return model_(x); });
    r.passed = leaks == 0;
    r.detail = leaks == 0 ? "later tokens change no earlier logit"
                          : concat(leaks, " later tokens changed earlier logits");
  }

  void padding(CheckResult& r) {
    const Tensor batch = tokens(3, length_);
    const Tensor together = model_(batch);
    const int64_t part = std::max<int64_t>(1, length_ - 5);
    r.passed = true;
    for (int64_t b = 0; b < 3; ++b) {
      const Tensor alone = slice(slice(batch, 0, b, b + 1), 1, 0, part).contiguous();
      r.passed = r.passed && same_bits(model_(alone), slice(slice(together, 0, b, b + 1), 1, 0, part));
    }
    r.detail = r.passed ? "a row is bitwise equal alone and in a batch of longer rows"
                        : "a row depends on its neighbours";
  }

  void cache(CheckResult& r) {
    const Tensor x = tokens(2, length_);
    const Tensor whole = model_(x);
    Cached cached;
    for (const int64_t chunk : {1, 5}) {
      nn::DecodeState state = model_.make_state(2, length_);
      compare_steps(cached, x, whole, chunk,
                    [&](const Tensor& part) { return model_(part, {.state = &state}); });
    }
    r.passed = cached.same;
    r.detail = cached.same ? "token by token and in chunks of 5: bitwise equal to the whole"
                           : concat("logits differ by ", cached.largest);
  }

  void threads(CheckResult& r) {
    LanguageModel copy = nn::clone(model_);
    const Tensor x = tokens(3, length_), y = tokens(3, length_);
    compare_threads(r, nn::parameters(copy), [&] { return copy.loss(x, y); });
  }

  // One random direction per tensor: ⟨g, d⟩ against D(ε) = (L(w + εd) - L(w - εd)) / 2ε, whose error of ε² two
  // steps take away (Richardson's extrapolation): norms of short vectors bend the loss.
  void gradient(CheckResult& r) {
    LanguageModel copy = nn::clone(model_);
    nn::to(copy, Dtype::f64);
    const int64_t length = std::min<int64_t>(length_, 8);
    const Tensor x = tokens(1, length), y = tokens(1, length);
    const Loss loss = [&] { return copy.loss(x, y); };
    const std::vector<Tensor> analytic = gradients(nn::parameters(copy), loss);
    const auto parameters = nn::named_parameters(copy);
    double worst = 0;
    std::string worst_name;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto [numeric, exact] = directional(parameters[i].tensor, analytic[i], loss);
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

  void overfit(CheckResult& r) {
    LanguageModel copy = nn::clone(model_);
    const int64_t length = std::min<int64_t>(length_, 16);
    const Tensor x = tokens(2, length), y = tokens(2, length);
    overfit_batch(r, nn::parameters(copy), 2 * length, [&] { return copy.loss(x, y); });
  }

 private:
  Tensor tokens(int64_t batch, int64_t length) {
    return random_tokens({batch, length}, vocabulary_, rng_.next());
  }

  std::pair<double, double> directional(const Tensor& parameter, const Tensor& gradient, const Loss& loss) {
    const Tensor direction = randn(parameter.shape(), rng_, Dtype::f64);
    const Tensor before = parameter.clone();
    const double epsilon = 1e-5;
    const auto loss_at = [&](double step) {
      const auto w = parameter.span<double>(), w0 = before.span<double>(), d = direction.span<double>();
      for (size_t i = 0; i < w.size(); ++i) w[i] = w0[i] + step * d[i];
      return loss().item();
    };
    const auto difference = [&](double step) { return (loss_at(step) - loss_at(-step)) / (2 * step); };
    const double numeric = (4 * difference(epsilon / 2) - difference(epsilon)) / 3;
    parameter.copy_from(before);
    double exact = 0;
    if (gradient.defined()) {
      const auto g = gradient.to_vector<double>(), d = direction.to_vector<double>();
      for (size_t i = 0; i < g.size(); ++i) exact += g[i] * d[i];
    }
    return {numeric, exact};
  }

  const LanguageModel& model_;
  Rng rng_;
  int64_t length_, vocabulary_;
};

class TranslatorDoctor {
 public:
  TranslatorDoctor(const Seq2Seq& model, const DoctorOptions& options)
      : model_(model),
        length_(checked_length(options, model.config().max_positions - 1)),
        vocabulary_(model.config().target_vocab_size) {
    const auto random = [&](int64_t vocabulary, uint64_t purpose) {
      return random_tokens({2, length_}, vocabulary, {options.seed, purpose}, model.config().pad_id);
    };
    source_ = {random(model.config().source_vocab_size, 1), {}};
    target_ = {random(vocabulary_, 2), {}};
    labels_ = random(vocabulary_, 3);
  }

  void finite(CheckResult& r) {
    const double loss = model_.loss(source_, target_, labels_).item();
    r.passed = is_finite(logits(source_, target_.tokens), loss);
    r.detail =
        concat("loss ", loss,
               " on random tokens (uniform guessing: ", std::log(static_cast<double>(vocabulary_)), ")");
  }

  void causality(CheckResult& r) {
    const int64_t leaks = count_leaks(target_.tokens, vocabulary_, 1,
                                      [&](const Tensor& target) { return logits(source_, target); });
    r.passed = leaks == 0;
    r.detail = concat(leaks, " of ", length_ - 1, " target tokens change logits before them");
  }

  void source(CheckResult& r) {
    const Tensor before = logits(source_, target_.tokens);
    int64_t ignored = 0;
    for (int64_t at = 0; at < length_; ++at) {
      const TokenBatch other{changed(source_.tokens, at, model_.config().source_vocab_size), {}};
      ignored += same_bits(before, logits(other, target_.tokens)) ? 1 : 0;
    }
    const Tensor padding = Tensor::full({2, 1}, static_cast<double>(model_.config().pad_id), Dtype::i32);
    const TokenBatch longer{multihead::concat({source_.tokens, padding}, 1), {length_, length_}};
    const bool same = same_bits(before, logits(longer, target_.tokens));
    r.passed = ignored == 0 && same;
    r.detail = concat(ignored, " of ", length_, " source tokens are ignored; padding ",
                      same ? "changes nothing" : "changes the logits");
  }

  void cache(CheckResult& r) {
    const Tensor whole = logits(source_, target_.tokens);
    nn::DecodeState state = model_.start(source_, length_);
    Cached cached;
    compare_steps(cached, target_.tokens, whole, 1, [&](const Tensor& x) { return model_.step(x, state); });
    r.passed = cached.same;
    r.detail = concat("token by token differs from all at once by ", cached.largest);
  }

  void search(CheckResult& r) {
    const Tensor whole = logits(source_, target_.tokens);
    const models::PackedSeq2Seq packed(model_);
    std::vector<std::vector<int32_t>> sources(2);
    for (size_t row = 0; row < 2; ++row) {
      const int32_t* tokens = source_.tokens.data<int32_t>() + static_cast<int64_t>(row) * length_;
      sources[row].assign(tokens, tokens + length_);
    }
    models::PackedState state = packed.start(sources);
    double largest = 0, scale = 0;
    for (int64_t t = 0; t < length_; ++t) {
      const int32_t* tokens = target_.tokens.data<int32_t>() + t;
      const Tensor one = packed.step(std::vector<int32_t>{tokens[0], tokens[length_]}, state);
      const Tensor expected = reshape(slice(whole, 1, t, t + 1).contiguous(), {2, -1});
      largest = std::max(largest, largest_difference(one, expected));
      for (const double x : expected.to_vector<double>()) scale = std::max(scale, std::abs(x));
    }
    r.passed = largest <= 1e-4 * std::max(scale, 1.0);
    r.detail = concat("logits up to ", scale, " differ by ", largest);
  }

  void threads(CheckResult& r) {
    Seq2Seq copy = nn::clone(model_);
    compare_threads(r, nn::parameters(copy), [&] { return copy.loss(source_, target_, labels_); });
  }

  void overfit(CheckResult& r) {
    Seq2Seq copy = nn::clone(model_);
    overfit_batch(r, nn::parameters(copy), 2 * length_, [&] { return copy.loss(source_, target_, labels_); });
  }

 private:
  Tensor logits(const TokenBatch& source, const Tensor& target) const { return model_(source, {target, {}}); }

  const Seq2Seq& model_;
  int64_t length_, vocabulary_;  // of the target
  TokenBatch source_, target_;
  Tensor labels_;
};

}  // namespace

std::vector<CheckResult> check_language_model(const LanguageModel& model, const DoctorOptions& options) {
  using D = LanguageModelDoctor;
  if (model.packed_dtype()) {
    return run_checks(D(model, options), options,
                      {{"finite", &D::finite},
                       {"causality", &D::causality},
                       {"padding", &D::padding},
                       {"cache", &D::cache}});
  }
  return run_checks(D(model, options), options,
                    {{"finite", &D::finite},
                     {"causality", &D::causality},
                     {"padding", &D::padding},
                     {"cache", &D::cache},
                     {"threads", &D::threads},
                     {"gradient", &D::gradient},
                     {"overfit", &D::overfit}});
}

std::vector<CheckResult> check_translator(const Seq2Seq& model, const DoctorOptions& options) {
  using D = TranslatorDoctor;
  return run_checks(D(model, options), options,
                    {{"finite", &D::finite},
                     {"causality", &D::causality},
                     {"source", &D::source},
                     {"cache", &D::cache},
                     {"search", &D::search},
                     {"threads", &D::threads},
                     {"overfit", &D::overfit}});
}

}  // namespace multihead::train
