// Passes a module's points. Without a PointScope on the thread all of this returns at once.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/core/threads/parallel.h"
#include "multihead/nn/points.h"
#include "multihead/ops/attention/attention.h"

namespace multihead::nn::detail {

struct PointAxes {
  int rows = 1, heads = -1;             ///< -1: none
  std::vector<int64_t> only_rows = {};  ///< the tensor has these rows of …
  int64_t row_count = 0;                ///< … this many; empty: all
};

/// The points of the innermost PointScope of this thread.
extern constinit thread_local Points* active_points;

/// Whether a PointScope is alive on this thread.
inline bool looking() { return active_points != nullptr; }

Tensor passed(std::string_view name, const Tensor& x, const PointAxes& axes);
/// x, kept or replaced if the point was requested.
inline Tensor point(std::string_view name, const Tensor& x, const PointAxes& axes) {
  return looking() ? passed(name, x, axes) : x;
}
inline Tensor point(std::string_view name, const Tensor& x) { return looking() ? passed(name, x, {}) : x; }
bool is_asked_for(std::string_view name);
/// Whether the point was requested: for what is expensive to compute.
inline bool wants(std::string_view name) { return looking() && is_asked_for(name); }
/// The pairs excluded from the attention whose points are passed.
Mask excluded();
/// The attention at hand has no points: check() says so of requests for them.
void note_headless();

// Scores and patterns are made on demand and need more.
/// Whether the point may be changed, or its gradient was requested.
bool is_edited(std::string_view name);
/// Keeps make(part) for everybody who asked to keep the point.
void keep_made(std::string_view name, FunctionRef<Tensor(const PointPart&)> make);
/// The rows requested at one of the points, ascending; empty: all `size`.
std::vector<int64_t> rows_asked(std::initializer_list<std::string_view> names, int64_t size);
/// The given indices of an axis, and x with `part` in their place.
Tensor take(const Tensor& x, int axis, const std::vector<int64_t>& indices);
Tensor put(const Tensor& x, int axis, const std::vector<int64_t>& indices, const Tensor& part);

/// The points until the end of the block are inside this part.
class PointPath {
 public:
  explicit PointPath(std::string_view part) {
    if (looking()) length_ = push(part);
  }
  PointPath(std::string_view list, size_t index) {
    if (looking()) length_ = push(list), push(std::to_string(index));
  }
  ~PointPath() {
    if (length_ >= 0) pop(length_);
  }
  PointPath(const PointPath&) = delete;
  PointPath& operator=(const PointPath&) = delete;

 private:
  static int64_t push(std::string_view part);  // what the length was before
  static void pop(int64_t length);

  int64_t length_ = -1;
};

/// attention() of heads [B, T, H, D] (Layout::bthd) with the points scores and pattern.
Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionOptions& options,
              const ScoreMod& score_mod);
/// attention_ragged() with the same points, which can be kept only.
Tensor attend_ragged(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& cu_seqlens,
                     const AttentionOptions& options, const ScoreMod& score_mod);

}  // namespace multihead::nn::detail
