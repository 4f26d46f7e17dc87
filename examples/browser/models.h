// The two models of the browser's lab, and what they are trained on.
#pragma once

#include <string>
#include <vector>

#include "multihead/look/look.h"
#include "multihead/multihead.h"

namespace browser {

namespace mh = multihead;

/// Two layers of attention alone over characters, trained to go on with what stands earlier in the text.
class Repeater {
 public:
  Repeater();
  /// A step on stretches of random characters that are said again and again; returns the loss.
  double step();
  mh::look::AttentionRun look(const std::string& text, const mh::look::Look& changes) const;

  mh::models::LanguageModel model;

 private:
  mh::Rng rng_;
  mh::optim::AdamW optimizer_;
};

/// Two layers over the 16 patches of an 8 x 8 image: which digit is it?
class DigitReader {
 public:
  /// A line per image: its digit, then 64 letters for 0 ("a") to 16. The last kTests are kept for the test.
  /// Throws ValueError for another form.
  explicit DigitReader(const std::string& lines);
  /// A step on 64 images; returns the loss.
  double step();
  /// The share of the test images whose digit is right.
  double accuracy() const;
  /// The attention of test image `index`, and what the model makes of it.
  mh::look::AttentionRun look(int64_t index, const mh::look::Look& changes) const;

  static constexpr int64_t kTests = 300;
  mh::models::ImageEncoder model;

 private:
  mh::Tensor test_images(int64_t begin, int64_t end) const;

  std::vector<float> pixels_;  // one image after the other
  std::vector<int32_t> digits_;
  int64_t trained_on_ = 0, steps_ = 0;
  mh::Rng rng_;
  mh::optim::AdamW optimizer_;
};

}  // namespace browser
