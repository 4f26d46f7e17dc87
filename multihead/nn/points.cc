#include "multihead/nn/points.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <utility>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/core/threads/per_thread-inl.h"
#include "multihead/nn/points-inl.h"
#include "multihead/ops/shape.h"

namespace multihead::nn {
namespace detail {

constinit thread_local Points* active_points = nullptr;

Tensor take(const Tensor& x, int axis, const std::vector<int64_t>& indices) {
  std::vector<Tensor> parts;
  for (const int64_t i : indices) parts.push_back(slice(x, axis, i, i + 1));
  return concat(parts, axis);
}

Tensor put(const Tensor& x, int axis, const std::vector<int64_t>& indices, const Tensor& part) {
  std::vector<std::pair<int64_t, int64_t>> sorted;
  for (size_t i = 0; i < indices.size(); ++i) sorted.emplace_back(indices[i], static_cast<int64_t>(i));
  std::sort(sorted.begin(), sorted.end());
  std::vector<Tensor> parts;
  int64_t end = 0;
  for (const auto& [at, from] : sorted) {
    MH_CHECK(at >= end, ValueError, "Points: an edit names row or head ", at, " twice");
    if (at > end) parts.push_back(slice(x, axis, end, at));
    parts.push_back(slice(part, axis, from, from + 1));
    end = at + 1;
  }
  if (end < x.size(axis)) parts.push_back(slice(x, axis, end, x.size(axis)));
  return concat(parts, axis);
}

}  // namespace detail

namespace {

using detail::active_points;
using detail::put;
using detail::take;

// Where in the model this thread is, with a dot at the end.
thread_local PerThread<std::string> path;

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

// The wanted indices of an axis of `size`.
std::vector<int64_t> resolved(const std::string& name, std::vector<int64_t> indices, int64_t size) {
  for (int64_t& i : indices) {
    MH_CHECK(i >= -size && i < size, ValueError, "Points: ", name, " has ", size, " rows or heads, index ", i,
             " is out of range");
    if (i < 0) i += size;
  }
  return indices;
}

// One part of one tensor: taken, and put back.
struct Selection {
  int rows_axis = -1, heads_axis = -1;
  std::vector<int64_t> rows, heads;

  Selection(const std::string& name, const Tensor& x, const PointPart& part, const detail::PointAxes& axes) {
    if (!part.rows.empty() && axes.rows >= 0) {
      rows_axis = axes.rows;
      rows = resolved(name, part.rows, axes.only_rows.empty() ? x.size(rows_axis) : axes.row_count);
      for (int64_t& row : rows) {
        const auto present = std::find(axes.only_rows.begin(), axes.only_rows.end(), row);
        if (present != axes.only_rows.end()) row = present - axes.only_rows.begin();
      }
    }
    if (!part.heads.empty() && axes.heads >= 0) {
      heads_axis = axes.heads;
      heads = resolved(name, part.heads, x.size(heads_axis));
    }
  }
  Tensor of(const Tensor& x) const {
    const Tensor y = rows_axis >= 0 ? take(x, rows_axis, rows) : x;
    return heads_axis >= 0 ? take(y, heads_axis, heads) : y;
  }
  Tensor replaced(const Tensor& x, const Tensor& value) const {
    if (rows_axis < 0) return heads_axis < 0 ? value : put(x, heads_axis, heads, value);
    if (heads_axis < 0) return put(x, rows_axis, rows, value);
    return put(x, rows_axis, rows, put(take(x, rows_axis, rows), heads_axis, heads, value));
  }
};

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

}  // namespace

/// The access of detail's free functions to Points.
struct PointAccess {
  using Kind = Points::Kind;

  static Tensor pass(std::string_view name, const Tensor& x, const detail::PointAxes& axes) {
    return active_points->pass(*path + std::string(name), x, axes);
  }
  template <class F>
  static void each(const std::string& name, F&& f) {
    active_points->seen_.insert(name);
    for (Points::Entry& entry : active_points->entries_) {
      if (entry.kind == Kind::exclude || !matches(entry.pattern, name)) continue;
      entry.met = true;
      f(entry);
    }
  }
  static bool wants(const std::string& name) {
    bool result = false;
    each(name, [&](const Points::Entry&) { result = true; });
    return result;
  }
  static bool edits(const std::string& name) {
    bool result = false;
    each(name, [&](const Points::Entry& entry) { result |= entry.kind != Kind::keep; });
    return result;
  }
  static Mask excluded() {
    Mask mask;
    if (path->empty()) return mask;
    const std::string name = path->substr(0, path->size() - 1);
    for (Points::Entry& entry : active_points->entries_) {
      if (entry.kind != Kind::exclude || !matches(entry.pattern, name)) continue;
      entry.met = true;
      mask &= entry.mask;
    }
    return mask;
  }
  static void note_headless() { active_points->headless_.insert(*path); }
  template <class F>
  static void keep(const std::string& name, F&& make) {
    each(name, [&](const Points::Entry& entry) { active_points->kept_[name] = make(entry.part); });
  }
  // The rows of scores and patterns that were requested; empty: all.
  static std::vector<int64_t> rows(std::initializer_list<std::string_view> names, int64_t size) {
    std::vector<int64_t> result;
    bool all = false;
    for (const std::string_view part : names) {
      const std::string name = *path + std::string(part);
      each(name, [&](const Points::Entry& entry) {
        all |= entry.part.rows.empty();
        for (const int64_t row : resolved(name, entry.part.rows, size)) result.push_back(row);
      });
    }
    std::sort(result.begin(), result.end());
    result.erase(std::unique(result.begin(), result.end()), result.end());
    return all ? std::vector<int64_t>{} : result;
  }
};

Points& Points::add(Entry entry) {
  entry.pattern = name_of(entry.pattern);
  entries_.push_back(std::move(entry));
  return *this;
}
Points& Points::keep(const std::string& pattern, const PointPart& part) {
  return add({.kind = Kind::keep, .pattern = pattern, .part = part});
}
Points& Points::keep_gradient(const std::string& pattern) {
  return add({.kind = Kind::gradient, .pattern = pattern});
}
Points& Points::edit(const std::string& pattern, Edit edit, const PointPart& part) {
  return add({.kind = Kind::edit, .pattern = pattern, .part = part, .edit = std::move(edit)});
}
Points& Points::exclude(const std::string& pattern, const Mask& mask) {
  return add({.kind = Kind::exclude, .pattern = pattern, .mask = mask});
}

Points::Points() : gradients_(std::make_shared<std::map<std::string, Tensor>>()) {}

void Points::check_heads(const std::string& pattern) const {
  for (const std::string& attention : headless_) {
    for (const char* name : {"q", "k", "v", "rot_q", "rot_k", "scores", "pattern", "z", "result"}) {
      MH_CHECK(!matches(pattern, attention + name), ValueError, "Points: ", quote(pattern),
               " are values of heads; ", attention.substr(0, attention.size() - 1),
               " is no multi-head attention (latent, or a class of its own) and has none");
    }
  }
}

void Points::check() const {
  for (const Entry& entry : entries_) {
    if (entry.met) continue;
    check_heads(entry.pattern);
    std::string names;
    for (const std::string& name : seen_) {
      if (names.size() > 600) {
        names += ", …";
        break;
      }
      names += (names.empty() ? "" : ", ") + name;
    }
    MH_CHECK(false, ValueError, "Points: nothing is called ", quote(entry.pattern),
             names.empty() ? std::string("; no module ran") : "; passed were " + names);
  }
}

std::string Points::name_of(std::string_view name) {
  std::string result(name);
  if (result.find("hook_") == std::string::npos && !result.starts_with("blocks.")) return result;
  for (const auto& [theirs, ours] : std::to_array<std::pair<std::string_view, std::string_view>>(
           {{"blocks.", "layers."},
            {".attn.hook_attn_scores", ".self_attn.scores"},
            {".attn.", ".self_attn."},
            {".mlp.hook_pre_linear", ".mlp_pre_linear"},
            {".mlp.hook_pre", ".mlp_pre"},
            {".mlp.hook_post", ".mlp_post"},
            {".ln1.", ".norm1."},
            {".ln2.", ".norm2."},
            {"ln_final.", "final_norm."},
            {"hook_", ""}})) {
    replace_all(result, theirs, ours);
  }
  return result;
}

// Identity whose backward notes the gradient. Where nothing before the point requires one, it begins here.
Tensor Points::watch(const std::string& name, const Tensor& x) {
  const bool begins = Tape::current() != nullptr && !x.requires_grad();
  const Tensor from = begins ? x.detach().set_requires_grad() : x;
  return record({from}, x.detach(), [name, to = gradients_](Tensor d) -> Gradients {
    (*to)[name] = d.clone();
    return {std::move(d)};
  });
}

Tensor Points::pass(const std::string& name, const Tensor& x, const detail::PointAxes& axes) {
  Tensor y = x;
  PointAccess::each(name, [&](const Entry& entry) {
    if (entry.kind == Kind::gradient) {
      y = watch(name, y);
      return;
    }
    const Selection part(name, y, entry.part, axes);
    const Tensor before = part.of(y);
    if (entry.kind == Kind::keep) {
      kept_[name] = before;
      return;
    }
    const Tensor after = entry.edit(name, before);
    if (!after.defined() || after.is_same(before)) return;
    MH_CHECK(after.shape() == before.shape() && after.dtype() == before.dtype(), ShapeError,
             "Points: the edit of ", name, " must return ", before.dtype(), " ", before.shape(), ", got ",
             after.dtype(), " ", after.shape());
    y = part.replaced(y, after);
  });
  return y;
}

PointScope::PointScope(Points& points) : outer_(active_points), outer_path_(std::move(*path)) {
  active_points = &points;
  path->clear();
}
PointScope::~PointScope() {
  active_points = outer_;
  *path = std::move(outer_path_);
}

namespace detail {

Tensor passed(std::string_view name, const Tensor& x, const PointAxes& axes) {
  return PointAccess::pass(name, x, axes);
}

bool is_asked_for(std::string_view name) { return PointAccess::wants(*path + std::string(name)); }

Mask excluded() { return looking() ? PointAccess::excluded() : Mask(); }

void note_headless() {
  if (looking()) PointAccess::note_headless();
}

int64_t PointPath::push(std::string_view part) {
  const auto before = static_cast<int64_t>(path->size());
  if (!part.empty()) path->append(part).append(1, '.');
  return before;
}
void PointPath::pop(int64_t length) { path->resize(static_cast<size_t>(length)); }

bool is_edited(std::string_view name) { return PointAccess::edits(*path + std::string(name)); }

void keep_made(std::string_view name, FunctionRef<Tensor(const PointPart&)> make) {
  PointAccess::keep(*path + std::string(name), make);
}

std::vector<int64_t> rows_asked(std::initializer_list<std::string_view> names, int64_t size) {
  return PointAccess::rows(names, size);
}

}  // namespace detail
}  // namespace multihead::nn
