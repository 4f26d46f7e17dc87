#include "multihead/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"

namespace multihead::optim {
namespace {

double noam(const Schedule& s, double t) {
  return s.lr / std::sqrt(static_cast<double>(s.embed_dim)) *
         std::min(1 / std::sqrt(t), t * std::pow(static_cast<double>(s.warmup_steps), -1.5));
}

// The fraction of the way from lr to the last rate that is left, 1 … 0.
double remaining(const Schedule& s, int64_t step) {
  if (s.kind == ScheduleKind::constant) return 1;
  if (s.kind == ScheduleKind::wsd) {
    const double length = s.decay_share * static_cast<double>(s.total_steps);
    const double left = std::max(0.0, static_cast<double>(s.total_steps - step));
    return left >= length ? 1 : 1 - std::sqrt(1 - left / length);
  }
  const int64_t length = std::max<int64_t>(s.total_steps - s.warmup_steps, 1);
  const double done = std::min(1.0, static_cast<double>(step - s.warmup_steps) / static_cast<double>(length));
  if (s.kind == ScheduleKind::linear) return 1 - done;
  return 0.5 * (1 + std::cos(std::numbers::pi * done));
}

}  // namespace

double Schedule::at(int64_t step) const {
  check(*this);
  MH_CHECK(step >= 0, ValueError, "schedule: the step must not be negative, got ", step);
  if (kind == ScheduleKind::noam) return noam(*this, static_cast<double>(step) + 1);
  if (step < warmup_steps) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  return lr * (final_ratio + (1 - final_ratio) * remaining(*this, step));
}

void check(const Schedule& s) {
  MH_CHECK(std::isfinite(s.lr) && s.lr > 0, ValueError,
           "schedule: the learning rate must be positive and finite, got ", s.lr);
  MH_CHECK(s.warmup_steps >= 0, ValueError, "schedule: warmup_steps must not be negative, got ",
           s.warmup_steps);
  MH_CHECK(s.final_ratio >= 0 && s.final_ratio <= 1, ValueError,
           "schedule: final_ratio must be in [0, 1], got ", s.final_ratio);
  MH_CHECK(s.decay_share > 0 && s.decay_share <= 1, ValueError,
           "schedule: decay_share must be in (0, 1], got ", s.decay_share);
  if (s.kind == ScheduleKind::noam) {
    MH_CHECK(s.embed_dim > 0, ValueError, "schedule: noam needs embed_dim > 0, got ", s.embed_dim);
    MH_CHECK(s.warmup_steps > 0, ValueError, "schedule: noam needs warmup_steps > 0, got 0");
  } else if (s.kind != ScheduleKind::constant) {
    MH_CHECK(s.total_steps > 0, ValueError, "schedule: ", name(s.kind), " needs total_steps > 0, got ",
             s.total_steps);
  }
  const double all = static_cast<double>(s.total_steps), decay = s.decay_share * all;
  MH_CHECK(s.kind != ScheduleKind::wsd || static_cast<double>(s.warmup_steps) + decay <= all + 1e-9,
           ValueError, "schedule: wsd's ", s.warmup_steps, " warmup_steps and its decay, the last ", decay,
           " steps, do not fit into total_steps ", s.total_steps);
}

std::string_view name(ScheduleKind kind) { return word_of(kind); }

ScheduleKind parse_schedule(std::string_view text) {
  if (const auto kind = value_of<ScheduleKind>(text)) return *kind;
  throw ValueError(concat("schedule: expected constant, linear, cosine, noam or wsd, got ", quote(text)));
}

}  // namespace multihead::optim
