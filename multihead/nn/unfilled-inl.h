// Parameters without initial values, for models that a file fills next. Internal to nn and models.
#pragma once

namespace multihead::nn {

/// While it lives, this thread makes parameters of uninitialised memory: drawing random numbers that are
/// overwritten is most of the time of a load. Whoever makes one sees to it that every parameter is filled.
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
