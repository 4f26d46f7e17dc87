// The checks of encoder-decoder models.
#include <algorithm>
#include <cmath>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/parallel.h"
#include "multihead/models/packed_seq2seq.h"
#include "multihead/nn/module.h"
#include "multihead/ops/shape.h"
#include "multihead/train/doctor-inl.h"
#include "multihead/train/doctor.h"

namespace multihead::train {
namespace {

using models::Seq2Seq;
using models::TokenBatch;

class TranslatorDoctor {
 public:
  TranslatorDoctor(const Seq2Seq& model, const DoctorOptions& options) : model_(model), options_(options) {
    length_ = std::min(options.length, model.config().max_positions - 1);
    MH_CHECK(length_ >= 1, ValueError, "check: length must be positive, got ", options.length);
    source_ = {random(2, model.config().source_vocab_size, 1), {}};
    target_ = {random(2, model.config().target_vocab_size, 2), {}};
    labels_ = random(2, model.config().target_vocab_size, 3);
  }

  std::vector<CheckResult> run() {
    CheckList checks(options_);
    checks.run("finite", [&](CheckResult& r) { finite(r); });
    checks.run("causality", [&](CheckResult& r) { causality(r); });
    checks.run("source", [&](CheckResult& r) { source(r); });
    checks.run("cache", [&](CheckResult& r) { cache(r); });
    checks.run("search", [&](CheckResult& r) { search(r); });
    checks.run("threads", [&](CheckResult& r) { threads(r); });
    checks.run("overfit", [&](CheckResult& r) { overfit(r); });
    return checks.take();
  }

 private:
  // Other tokens in every row, none of them special where the vocabulary allows it.
  Tensor random(int64_t batch, int64_t vocabulary, uint64_t purpose) const {
    const RandomStream stream{options_.seed, purpose};
    Tensor tokens = Tensor::empty({batch, length_}, Dtype::i32);
    for (int64_t i = 0; i < tokens.numel(); ++i) {
      const auto id =
          static_cast<int32_t>(stream.bits(static_cast<uint64_t>(i)) % static_cast<uint64_t>(vocabulary));
      tokens.data<int32_t>()[i] =
          id == model_.config().pad_id ? (id + 1) % static_cast<int32_t>(vocabulary) : id;
    }
    return tokens;
  }

  Tensor logits(const TokenBatch& source, const Tensor& target) const { return model_(source, {target, {}}); }

  // Another token in one place of every row.
  static Tensor changed(const Tensor& tokens, int64_t at, int64_t vocabulary) {
    Tensor other = tokens.clone();
    for (int64_t row = 0; row < tokens.size(0); ++row) {
      int32_t& token = other.data<int32_t>()[row * tokens.size(1) + at];
      token = static_cast<int32_t>((token + 1) % vocabulary);
    }
    return other;
  }

  void finite(CheckResult& r) {
    const auto values = logits(source_, target_.tokens).to_vector<double>();
    const double loss = model_.loss(source_, target_, labels_).item();
    const bool numbers = std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
    r.passed = numbers && std::isfinite(loss);
    r.detail = concat("loss ", loss, " on random tokens (uniform guessing: ",
                      std::log(static_cast<double>(model_.config().target_vocab_size)), ")");
  }

  void causality(CheckResult& r) {
    const Tensor before = logits(source_, target_.tokens);
    int64_t wrong = 0;
    for (int64_t at = 1; at < length_; ++at) {
      const Tensor after = logits(source_, changed(target_.tokens, at, model_.config().target_vocab_size));
      wrong += same_bits(slice(before, 1, 0, at), slice(after, 1, 0, at)) ? 0 : 1;
    }
    r.passed = wrong == 0;
    r.detail = concat(wrong, " of ", length_ - 1, " target tokens change logits before them");
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
    double largest = 0;
    bool same = true;
    for (int64_t t = 0; t < length_; ++t) {
      const Tensor one = model_.step(slice(target_.tokens, 1, t, t + 1).contiguous(), state);
      same = same && same_bits(one, slice(whole, 1, t, t + 1));
      largest = std::max(largest, largest_difference(one, slice(whole, 1, t, t + 1)));
    }
    r.passed = same;
    r.detail = concat("token by token differs from all at once by ", largest);
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
    const ThreadScope scope;
    std::vector<std::vector<Tensor>> gradients;
    for (const int count : {1, 2, 3}) {
      set_num_threads(count);
      Seq2Seq copy = nn::clone(model_);
      Tape tape;
      tape.backward(copy.loss(source_, target_, labels_));
      gradients.emplace_back();
      for (const Tensor& parameter : nn::parameters(copy)) gradients.back().push_back(parameter.grad());
    }
    size_t wrong = 0;
    for (size_t i = 0; i < gradients[0].size(); ++i) {
      const auto same = [&](size_t k) {
        return !gradients[0][i].defined() || same_bits(gradients[0][i], gradients[k][i]);
      };
      wrong += same(1) && same(2) ? 0 : 1;
    }
    r.passed = wrong == 0;
    r.detail = concat(wrong, " of ", gradients[0].size(), " gradients depend on the number of threads");
  }

  void overfit(CheckResult& r) {
    Seq2Seq copy = nn::clone(model_);
    learn_by_heart(r, nn::parameters(copy), 2 * length_,
                   [&] { return copy.loss(source_, target_, labels_); });
  }

  const Seq2Seq& model_;
  const DoctorOptions& options_;
  int64_t length_ = 0;
  TokenBatch source_, target_;
  Tensor labels_;
};

}  // namespace

std::vector<CheckResult> check_translator(const Seq2Seq& model, const DoctorOptions& options) {
  return TranslatorDoctor(model, options).run();
}

}  // namespace multihead::train
