// The tape of a first pass that is run again. Internal to autograd.
#pragma once

#include "multihead/autograd/tape.h"

namespace multihead::detail {

/// A tape that keeps nothing: its results count as those of a tape that is gone, so that what leaves the pass
/// by a side door (a log-sum-exp, a capture) is an error under the outer tape and not a constant.
class ForgetfulTape {
 public:
  ForgetfulTape();
  ~ForgetfulTape();
  ForgetfulTape(const ForgetfulTape&) = delete;
  ForgetfulTape& operator=(const ForgetfulTape&) = delete;

 private:
  const Tape* outer_;
  Tape tape_;
};

}  // namespace multihead::detail
