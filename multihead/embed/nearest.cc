#include "multihead/embed/nearest.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/embed/best-inl.h"
#include "multihead/embed/pooling.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/shape.h"

namespace multihead::embed {

namespace detail {

void check_finite(const char* who, const Tensor& rows) {
  const Tensor x = rows.contiguous();
  const int64_t width = x.size(1);
  for (int64_t row = 0; row < x.size(0); ++row) {
    const float* const first = x.data<float>() + row * width;
    MH_CHECK(std::all_of(first, first + width, [](float value) { return std::isfinite(value); }), ValueError,
             "nearest: row ", row, " of the ", who, " holds NaN or Inf");
  }
}

void check_count(int64_t count) {
  MH_CHECK(count > 0, ValueError, "nearest: count must be positive, got ", count);
}

double score_of(Similarity by, double shared, double query_size, double size) {
  if (by == Similarity::dot) return shared;
  if (by == Similarity::manhattan) return shared - query_size - size;
  if (by == Similarity::euclidean) return -std::sqrt(std::max(query_size + size - 2 * shared, 0.0));
  return query_size > 0 && size > 0 ? shared / std::sqrt(query_size * size) : 0;
}

}  // namespace detail

namespace {

using detail::check_count;
using detail::check_finite;
using detail::keep_best;
using detail::score_of;

void check_scores(std::span<const float> scores) {
  MH_CHECK(std::all_of(scores.begin(), scores.end(), [](float value) { return std::isfinite(value); }),
           ValueError, "nearest: a score is not finite: the rows' numbers are too large for f32");
}

using Ends = std::vector<int64_t>;

// Checked "ends" of so many rows.
Ends ends_of(const char* who, const Tensor& ends, int64_t rows) {
  MH_CHECK(ends.rank() == 1 && ends.numel() > 0 && ends.dtype() == Dtype::i64, ShapeError,
           "nearest: ends of the ", who, " must be [n + 1] i64, got ", ends.shape(), " ", ends.dtype());
  Ends all = ends.to_vector<int64_t>();
  MH_CHECK(all.front() == 0 && all.back() == rows && std::is_sorted(all.begin(), all.end()), ValueError,
           "nearest: ends of the ", who, " must not decrease, from 0 to ", rows);
  return all;
}

Ends checked(const char* who, const SparseRows& rows) {
  MH_CHECK(rows.columns.dtype() == Dtype::i64 && rows.values.dtype() == Dtype::f32 &&
               rows.columns.rank() == 1 && rows.columns.shape() == rows.values.shape(),
           ShapeError, "nearest: columns and values of the ", who, " must be i64 and f32 of one length, got ",
           rows.columns.shape(), " and ", rows.values.shape());
  Ends ends = ends_of(who, rows.ends, rows.values.numel());
  const int64_t* columns = rows.columns.data<int64_t>();
  const auto is_inside = [&](int64_t column) { return column >= 0 && column < rows.width; };
  MH_CHECK(std::all_of(columns, columns + rows.columns.numel(), is_inside), ValueError,
           "nearest: columns of the ", who, " must be in [0, ", rows.width, ")");
  check_finite(who, reshape(rows.values, {1, -1}));
  return ends;
}

// The numbers of a corpus by their columns: postings of column c are at [ends[c], ends[c + 1]).
struct Postings {
  Ends ends;
  std::vector<int64_t> rows;
  std::vector<float> values;
};

Postings postings_of(const SparseRows& corpus, const Ends& ends) {
  const auto width = static_cast<size_t>(corpus.width), count = static_cast<size_t>(corpus.values.numel());
  const int64_t* columns = corpus.columns.data<int64_t>();
  Postings postings{Ends(width + 1), std::vector<int64_t>(count), std::vector<float>(count)};
  for (size_t i = 0; i < count; ++i) ++postings.ends[static_cast<size_t>(columns[i]) + 1];
  for (size_t c = 0; c < width; ++c) postings.ends[c + 1] += postings.ends[c];
  Ends next(postings.ends.begin(), postings.ends.end() - 1);
  for (size_t row = 0; row + 1 < ends.size(); ++row) {
    for (auto i = static_cast<size_t>(ends[row]); i < static_cast<size_t>(ends[row + 1]); ++i) {
      const auto at = static_cast<size_t>(next[static_cast<size_t>(columns[i])]++);
      postings.rows[at] = static_cast<int64_t>(row);
      postings.values[at] = corpus.values.data<float>()[i];
    }
  }
  return postings;
}

// The size of each row by which scores are made of what two rows share: the sum of magnitudes or squares.
std::vector<double> sizes_of(const SparseRows& rows, const Ends& ends, Similarity by) {
  std::vector<double> sizes(ends.size() - 1);
  for (size_t row = 0; row < sizes.size(); ++row) {
    for (int64_t i = ends[row]; i < ends[row + 1]; ++i) {
      const double x = rows.values.data<float>()[i];
      sizes[row] += by == Similarity::manhattan ? std::abs(x) : x * x;
    }
  }
  return sizes;
}

// The sum over the rows of `scores`, [query vectors, text vectors], of the largest of the columns [begin,
// end).
float max_sim(const float* scores, int64_t rows, int64_t stride, int64_t begin, int64_t end) {
  float sum = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = scores + r * stride;
    sum += *std::max_element(row + begin, row + end);
  }
  return sum;
}

// The last text of those from `first` on whose vectors, `limit` at most unless there is one text, are done at
// a time.
size_t part_end(const Ends& ends, size_t first, int64_t limit) {
  size_t last = first + 1;
  while (last + 1 < ends.size() && ends[last + 1] - ends[first] <= limit) ++last;
  return last;
}

}  // namespace

Tensor similarities(const Tensor& queries, const Tensor& rows, Similarity by) {
  if (by == Similarity::dot) return linear(queries, rows);
  if (by == Similarity::cosine) return linear(normalized_rows(queries), normalized_rows(rows));
  const Tensor a = queries.contiguous(), b = rows.contiguous();
  const int64_t dim = a.size(1), count = b.size(0);
  const Tensor scores = Tensor::empty({a.size(0), count});
  parallel_for(scores.numel(), [&](int64_t at, int) {
    const float *x = a.data<float>() + at / count * dim, *y = b.data<float>() + at % count * dim;
    double sum = 0;
    for (int64_t i = 0; i < dim; ++i) {
      const double apart = static_cast<double>(x[i]) - y[i];
      sum += by == Similarity::euclidean ? apart * apart : std::abs(apart);
    }
    scores.data<float>()[at] = static_cast<float>(by == Similarity::euclidean ? -std::sqrt(sum) : -sum);
  });
  return scores;
}

std::vector<std::vector<Match>> nearest(const Tensor& queries, const Tensor& corpus, int64_t count,
                                        Similarity by) {
  MH_CHECK(queries.rank() == 2 && corpus.rank() == 2 && queries.size(1) == corpus.size(1), ShapeError,
           "nearest: expected [q, dim] and [n, dim], got ", queries.shape(), " and ", corpus.shape());
  check_count(count);
  check_finite("queries", queries), check_finite("corpus", corpus);
  const NoTape silent;
  const int64_t rows = corpus.size(0), asked = queries.size(0);
  constexpr int64_t kRows = 4096;  // of the corpus at a time
  std::vector<std::vector<Match>> best(static_cast<size_t>(asked));
  for (int64_t begin = 0; begin < rows; begin += kRows) {
    const int64_t end = std::min(begin + kRows, rows);
    const Tensor scores = similarities(queries, slice(corpus, 0, begin, end), by);
    check_scores({scores.data<float>(), static_cast<size_t>(scores.numel())});
    detail::add_scores(best, scores, begin, count);
  }
  return best;
}

std::vector<std::vector<Match>> nearest(const SparseRows& queries, const SparseRows& corpus, int64_t count,
                                        Similarity by) {
  check_count(count);
  MH_CHECK(queries.width == corpus.width, ShapeError, "nearest: queries have ", queries.width,
           " columns, the corpus ", corpus.width);
  const Ends asked = checked("queries", queries), ends = checked("corpus", corpus);
  const Postings postings = postings_of(corpus, ends);
  const std::vector<double> query_sizes = sizes_of(queries, asked, by), sizes = sizes_of(corpus, ends, by);
  std::vector<std::vector<Match>> best(asked.size() - 1);
  parallel_for(queries.size(), [&](int64_t q, int) {
    // By increasing column: a row's sum does not depend on the others.
    std::vector<double> shared(ends.size() - 1);
    std::vector<float> scores(ends.size() - 1);
    for (int64_t i = asked[static_cast<size_t>(q)]; i < asked[static_cast<size_t>(q) + 1]; ++i) {
      const auto column = static_cast<size_t>(queries.columns.data<int64_t>()[i]);
      const float value = queries.values.data<float>()[i];
      for (auto p = postings.ends[column]; p < postings.ends[column + 1]; ++p) {
        const auto at = static_cast<size_t>(p), row = static_cast<size_t>(postings.rows[at]);
        const double x = value, y = postings.values[at];
        shared[row] += by == Similarity::manhattan ? std::abs(x) + std::abs(y) - std::abs(x - y) : x * y;
      }
    }
    for (size_t row = 0; row < scores.size(); ++row) {
      scores[row] =
          static_cast<float>(score_of(by, shared[row], query_sizes[static_cast<size_t>(q)], sizes[row]));
    }
    check_scores(scores);
    std::vector<Match>& list = best[static_cast<size_t>(q)];
    for (size_t row = 0; row < scores.size(); ++row) list.push_back({static_cast<int64_t>(row), scores[row]});
    keep_best(list, count);
  });
  return best;
}

std::vector<std::vector<Match>> nearest(const MultiVectors& queries, const MultiVectors& corpus,
                                        int64_t count) {
  const Tensor &q = queries.vectors, &x = corpus.vectors;
  MH_CHECK(q.rank() == 2 && x.rank() == 2 && q.size(1) == x.size(1), ShapeError,
           "nearest: expected vectors [N, dim] and [M, dim], got ", q.shape(), " and ", x.shape());
  check_count(count);
  const Ends asked = ends_of("queries", queries.ends, q.size(0)),
             ends = ends_of("corpus", corpus.ends, x.size(0));
  check_finite("queries", q), check_finite("corpus", x);
  const NoTape silent;
  constexpr int64_t kQueryVectors = 512, kTextVectors = 4096;  // at a time
  std::vector<std::vector<Match>> best(asked.size() - 1);
  for (size_t text = 0; text + 1 < ends.size();) {
    const size_t text_end = part_end(ends, text, kTextVectors);
    const Tensor rows = slice(x, 0, ends[text], ends[text_end]);
    for (size_t query = 0; query + 1 < asked.size();) {
      const size_t query_end = part_end(asked, query, kQueryVectors);
      const Tensor scores = linear(slice(q, 0, asked[query], asked[query_end]), rows);
      check_scores({scores.data<float>(), static_cast<size_t>(scores.numel())});
      parallel_for(static_cast<int64_t>(query_end - query), [&](int64_t i, int) {
        const size_t at = query + static_cast<size_t>(i);
        const float* first = scores.data<float>() + (asked[at] - asked[query]) * rows.size(0);
        for (size_t t = text; t < text_end; ++t) {
          const float score = ends[t] == ends[t + 1]
                                  ? -std::numeric_limits<float>::infinity()
                                  : max_sim(first, asked[at + 1] - asked[at], rows.size(0),
                                            ends[t] - ends[text], ends[t + 1] - ends[text]);
          best[at].push_back({static_cast<int64_t>(t), score});
        }
        keep_best(best[at], count);
      });
      query = query_end;
    }
    text = text_end;
  }
  return best;
}

}  // namespace multihead::embed
