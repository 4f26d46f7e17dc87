// Parameters without initial values, for models that a file fills next. Internal to nn and models.
#pragma once

namespace multihead::nn {

/// While it is alive, parameters created by this thread are uninitialised: drawing random numbers only to
/// overwrite them would dominate the time of a load. The owner must fill every parameter.
class UnfilledParameters {
 public:
  UnfilledParameters() : before_(active_) { active_ = true; }
  ~UnfilledParameters() { active_ = before_; }
  UnfilledParameters(const UnfilledParameters&) = delete;
  UnfilledParameters& operator=(const UnfilledParameters&) = delete;
  static bool active() { return active_; }

 private:
  static inline thread_local bool active_ = false;
  bool before_;
};

}  // namespace multihead::nn
