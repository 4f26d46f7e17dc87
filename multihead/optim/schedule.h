// Learning rate schedules: functions of the step, without state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "multihead/core/text/enum_words.h"

namespace multihead::optim {

enum class ScheduleKind {
  constant,
  linear,
  cosine,
  noam,
  wsd,  ///< warm-up, stable, decay: constant until the last steps, so a run can be extended from there
};
constexpr auto enum_words(ScheduleKind) {
  return std::to_array<std::string_view>({"constant", "linear", "cosine", "noam", "wsd"});
}

/// Warm-up is linear: the first of `warmup_steps` steps gets lr / warmup_steps.
struct Schedule {
  ScheduleKind kind = ScheduleKind::constant;
  double lr = 1e-3;          ///< peak rate; noam: the factor
  int64_t warmup_steps = 0;  ///< noam: at least 1
  int64_t total_steps = 0;   ///< linear, cosine, wsd: end of the schedule; later steps keep the last rate
  double final_ratio = 0;    ///< linear, cosine, wsd: the last rate is final_ratio · lr
  int64_t embed_dim = 0;  ///< noam: lr · embed_dim^-½ · min(t^-½, t · warmup_steps^-1.5), t = step + 1
                          ///< (Vaswani et al. 2017, §5.3)
  double decay_share = 0.2;  ///< wsd: final fraction of total_steps, in which the rate falls as 1 - √t
                             ///< (Hägele et al. 2024)

  /// Steps count from 0. Throws ValueError if step < 0.
  double at(int64_t step) const;
};

/// Throws ValueError naming the first invalid field.
void check(const Schedule& schedule);

std::string_view name(ScheduleKind kind);
/// "constant", "linear", "cosine", "noam" or "wsd"; throws ValueError otherwise.
ScheduleKind parse_schedule(std::string_view name);

}  // namespace multihead::optim
