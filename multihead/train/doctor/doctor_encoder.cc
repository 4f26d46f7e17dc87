#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"
#include "multihead/train/doctor/doctor-inl.h"

namespace multihead::train {
namespace {

using namespace detail;  // NOLINT(google-build-using-namespace): the checks' own internals

class EncoderDoctor {
 public:
  EncoderDoctor(const models::Encoder& model, const DoctorOptions& options) : model_(model) {
    const int64_t longest = checked_length(options, model.config().context);
    uint64_t purpose = 0;
    for (const int64_t length : {longest, longest / 2 + 1, int64_t{1}}) {
      sequences_.push_back(
          random_tokens({length}, model.config().vocab_size, {options.seed, ++purpose}).to_vector<int32_t>());
    }
  }

  void finite(CheckResult& r) {
    const Tensor all = features(sequences_);
    r.passed = is_finite(all, 0);
    r.detail = concat("features of ", all.size(0), " tokens, the largest ",
                      largest_difference(all, zeros_like(all)));
  }

  void context(CheckResult& r) {
    const Tensor before = features(sequences_);
    const int64_t length = std::ssize(sequences_[0]);
    int64_t unseen = 0, leaks = 0;
    for (int64_t at = 0; at < length; ++at) {
      Sequences other = sequences_;
      int32_t& token = other[0][static_cast<size_t>(at)];
      token = static_cast<int32_t>((token + 1) % model_.config().vocab_size);
      const Tensor after = features(other);
      for (int64_t row = 0; row < before.size(0); ++row) {
        const bool same = same_bits(slice(before, 0, row, row + 1), slice(after, 0, row, row + 1));
        unseen += row < length && same ? 1 : 0;
        leaks += row >= length && !same ? 1 : 0;
      }
    }
    r.passed = unseen == 0 && leaks == 0;
    r.detail = concat(unseen, " of ", length * length, " pairs of tokens do not see each other; ", leaks,
                      " features of other sequences change");
  }

  void batch_invariance(CheckResult& r) {
    const Tensor together = features(sequences_),
                 backwards = features(Sequences(sequences_.rbegin(), sequences_.rend()));
    int64_t different = 0, at = 0, end = backwards.size(0);
    for (const std::vector<int32_t>& sequence : sequences_) {
      const int64_t length = std::ssize(sequence);
      const Tensor alone = features({sequence});
      const bool same = same_bits(alone, slice(together, 0, at, at + length)) &&
                        same_bits(alone, slice(backwards, 0, end - length, end));
      different += same ? 0 : 1;
      at += length, end -= length;
    }
    r.passed = different == 0;
    r.detail = concat(different, " of ", sequences_.size(), " sequences depend on the rest of their batch");
  }

  void threads(CheckResult& r) {
    models::Encoder copy = nn::clone(model_);
    const models::TokenRows tokens = models::TokenRows::of(sequences_);
    compare_threads(r, nn::parameters(copy), [&] { return mean(square(copy.features(tokens))); });
  }

 private:
  using Sequences = std::vector<std::vector<int32_t>>;

  Tensor features(const Sequences& sequences) const {
    return model_.features(models::TokenRows::of(sequences));
  }

  const models::Encoder& model_;
  Sequences sequences_;
};

}  // namespace

std::vector<CheckResult> check_encoder(const models::Encoder& model, const DoctorOptions& options) {
  using D = EncoderDoctor;
  if (model.packed_dtype()) {
    return run_checks(
        D(model, options), options,
        {{"finite", &D::finite}, {"context", &D::context}, {"batch invariance", &D::batch_invariance}});
  }
  return run_checks(D(model, options), options,
                    {{"finite", &D::finite},
                     {"context", &D::context},
                     {"batch invariance", &D::batch_invariance},
                     {"threads", &D::threads}});
}

}  // namespace multihead::train
