#include "multihead/ops/attention/inspect/explain.h"

#include <initializer_list>
#include <limits>
#include <locale>
#include <sstream>
#include <string_view>

#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/core/threads/threads.h"
#include "multihead/kernels/amx/amx-inl.h"
#include "multihead/ops/attention/call-inl.h"
#include "multihead/ops/attention/check-inl.h"
#include "multihead/ops/attention/terms-inl.h"

namespace multihead {
namespace {

using namespace detail;  // NOLINT(google-build-using-namespace): the op's own internals

std::string empty_row_text(EmptyRow rule) {
  switch (rule) {
    case EmptyRow::uniform:
      return "uniform: the mean of all values, excluded ones too";
    case EmptyRow::nan:
      return "nan";
    case EmptyRow::error:
      return "error: ValueError that names the row";
    case EmptyRow::zero:
      break;
  }
  return "zero: output 0, no gradient";
}

std::string alignment_text(const BoundMask& mask, const AttentionSizes& sizes) {
  const std::vector<int64_t>& offsets = mask.offsets();
  if (offsets.size() > 1) return "query i stands at key position i + offset of its sample";
  if (sizes.queries == sizes.keys && offsets[0] == 0) return "query i is at key position i";
  const bool end = offsets[0] == sizes.keys - sizes.queries, start = offsets[0] == 0;
  return concat("query i stands at key position i + ", offsets[0],
                end     ? " (end: the last query sees the last key)"
                : start ? " (start: query 0 at key 0)"
                        : " (given)");
}

std::vector<std::string> score_steps(const AttentionOptions& options, const ScoreMod& score_mod) {
  std::vector<std::string> steps;
  for (const AttentionTerm& term : attention_terms()) {
    if (term.is_set(options, score_mod)) steps.push_back(term.explain(options));
  }
  return steps;
}

std::string capture_text(const AttentionCapture* capture) {
  if (capture == nullptr) return "none";
  const char* stage = capture->stage == CaptureStage::scores          ? "scores"
                      : capture->stage == CaptureStage::probabilities ? "probabilities before dropout"
                                                                      : "probabilities after dropout";
  std::string text = capture->want_weights ? stage : "no weights";
  if (capture->want_key_mass) text += ", key mass";
  if (capture->want_entropy) text += ", entropy";
  if (capture->top_k > 0) text += concat(", top ", capture->top_k);
  return text + "; recomputed from the log-sum-exp, the output keeps its bits";
}

// Sizes of a plan may be anything: the largest number stands for what is larger.
int64_t product(std::initializer_list<int64_t> factors) {
  int64_t result = 1;
  for (const int64_t factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result)) return std::numeric_limits<int64_t>::max();
  }
  return result;
}

int64_t capture_bytes(const AttentionCapture* capture, const AttentionSizes& s, int64_t element) {
  if (capture == nullptr) return 0;
  const auto count = [](const std::vector<int64_t>& chosen, int64_t all) {
    return chosen.empty() ? all : static_cast<int64_t>(chosen.size());
  };
  int64_t bytes = 0;
  const auto add = [&](std::initializer_list<int64_t> factors) {
    if (__builtin_add_overflow(bytes, product(factors), &bytes)) bytes = std::numeric_limits<int64_t>::max();
  };
  if (capture->want_weights) {
    add({s.batch, count(capture->heads, s.heads), count(capture->query_rows, s.queries), s.keys, element});
  }
  if (capture->want_key_mass) add({s.batch, s.heads, s.keys, element});
  if (capture->want_entropy) add({s.batch, s.heads, s.queries, element});
  add({s.batch, s.heads, s.queries, capture->top_k, element + 8});
  return bytes;
}

void split_lines(const std::string& text, std::vector<std::string>& lines) {
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) lines.push_back(line);
  }
}

// Says which units multiply, and how precisely. `relative`: the table of vectors, if any, which takes plain f32.
void explain_products(Dtype dtype, const char* relative, AttentionExplanation& e) {
  const kernels::MatmulPrecision precision = kernels::float32_matmul_precision();
  const bool tiles = kernels::has_tiles() && !relative;
  const bool bf16_tiles = tiles && kernels::bf16_tiles(), dots = kernels::attention_on_pairs() && !relative;
  if (precision != kernels::MatmulPrecision::highest && dtype != Dtype::f64) {
    const std::string_view word = kernels::precision_name(precision);
    if (!tiles) {
      e.reasons.push_back(
          concat("float32_matmul_precision ", word, ": no effect, ",
                 relative ? concat(relative, " runs in plain f32") : "this CPU has no AMX tiles"));
    } else if (dtype != Dtype::bf16) {
      const kernels::PartScheme scheme = kernels::part_scheme(precision);
      e.reasons.push_back(concat("float32_matmul_precision ", word, ": products on tiles, ", scheme.products,
                                 " of bf16 parts each, forward and backward"));
    }
  }
  if (dtype == Dtype::f16) e.reasons.emplace_back("f16 is storage: operands are widened to f32 first");
  if (dtype != Dtype::bf16) return;
  e.reasons.emplace_back("bf16 is storage: scores, softmax and sums are f32");
  e.reasons.emplace_back(
      bf16_tiles
          ? "products on bf16 tiles (AMX) forward and backward, probabilities and their gradients rounded to "
            "bf16: same bits for any threads and chunking on such CPUs, others round differently"
      : dots     ? "forward products on bf16 pairs (AVX512_BF16), probabilities rounded to bf16: "
                   "same bits for any threads and chunking on such CPUs, others round differently"
      : relative ? concat("bf16 is widened to f32: ", relative, " takes no bf16 products")
                 : "bf16 is widened to f32: no fast bf16 products on this CPU or ISA");
}

// Where the kernel finds an operand: in place, or in the copy that is made of f16 and of rows with gaps.
kernels::Operand operand_in_kernel(const Tensor& x, Layout layout) {
  const Axes axes = layout == Layout::bthd ? kBthd : kBhtd;
  const bool in_place = x.dtype() != Dtype::f16 && (x.size(-1) <= 1 || x.strides()[-1] == 1);
  const Shape s = in_place ? x.strides() : contiguous_strides(x.shape());
  const Dtype dtype = x.dtype() == Dtype::f16 ? Dtype::f32 : x.dtype();
  return {nullptr, dtype, {s[axes.batch], s[axes.head], s[axes.token]}};
}

void add_plan(AttentionExplanation& e, const BoundAttention& bound, const kernels::AttentionInput& in,
              Dtype dtype, const AttentionOptions& options) {
  const AttentionSizes& s = bound.sizes();
  e.threads = num_threads();
  if (const int missing = missing_threads(); missing > 0) {
    e.reasons.push_back(
        concat(missing, " of ", e.threads, " threads could not be started; the others do ", "their work"));
  }
  const kernels::AttentionPlan p = kernels::attention_plan(bound.problem(), bound.terms(), in, e.threads);
  e.target = kernels::isa_name(p.isa);
  e.tasks = p.tasks;
  e.key_splits = p.key_splits;
  e.useful_pairs = p.useful_pairs;
  e.computed_pairs = p.computed_pairs;
  e.kernel = p.kernel;
  e.query_tile = p.query_tile;
  e.key_block = p.key_block;
  e.workspace_bytes = p.workspace_bytes;
  e.backward_workspace_bytes = p.backward_workspace_bytes;
  split_lines(p.reasons, e.reasons);
  explain_products(dtype,
                   options.relative_key.defined()     ? "relative_key"
                   : options.relative_value.defined() ? "relative_value"
                                                      : nullptr,
                   e);
  const auto element = static_cast<int64_t>(size_of(dtype)), wide = dtype == Dtype::f64 ? int64_t{8} : 4;
  e.output_bytes = product({s.batch, s.heads, s.queries, s.value_dim * element + wide});
  e.capture_bytes = capture_bytes(options.capture, s, wide);
  e.score_matrix_bytes = product({s.batch, s.heads, s.queries, s.keys, wide});
}

}  // namespace

AttentionExplanation explain(const Tensor& query, const Tensor& key, const Tensor& value,
                             const AttentionOptions& options, const ScoreMod& score_mod) {
  constexpr const char* who = "explain";
  const AttentionSizes sizes = check_attention(who, query, key, value, options.layout);
  AttentionOptions copy = options;
  Rng generator(0);
  if (options.rng) {
    generator = *options.rng;
    copy.rng = &generator;
  }
  const BoundAttention bound(who, sizes, copy, score_mod, query.dtype());
  AttentionExplanation e;
  e.mask = options.mask.to_string();
  e.mask_notes = bound.mask().notes();
  e.alignment = alignment_text(bound.mask(), sizes);
  e.empty_row = empty_row_text(options.empty_row);
  e.scale = bound.problem().scale;
  e.scale_rule = options.scale ? "given" : "1/sqrt(head_dim)";
  e.scores = score_steps(options, score_mod);
  e.dropout_p = bound.problem().dropout_p;
  e.capture = capture_text(options.capture);
  const auto operand = [&](const Tensor& x) { return operand_in_kernel(x, options.layout); };
  add_plan(e, bound, {operand(query), operand(key), operand(value)}, query.dtype(), options);
  return e;
}

AttentionExplanation plan(const AttentionShape& shape, const AttentionOptions& options,
                          const ScoreMod& score_mod) {
  MH_CHECK(shape.batch >= 0 && shape.heads >= 0 && shape.kv_heads >= 0 && shape.queries >= 0 &&
               shape.keys >= 0 && shape.head_dim >= 0 && shape.value_dim >= 0,
           ValueError, "plan: sizes must be >= 0");
  const int64_t kv = shape.kv_heads == 0 ? shape.heads : shape.kv_heads;
  const int64_t keys = shape.keys == 0 ? shape.queries : shape.keys;
  const int64_t value_dim = shape.value_dim == 0 ? shape.head_dim : shape.value_dim;
  // One element seen from everywhere: sizes without memory.
  const Tensor element = Tensor::zeros({1}, shape.dtype);
  const auto sized = [&](int64_t heads, int64_t tokens, int64_t dim) {
    const Shape full = options.layout == Layout::bthd ? Shape{shape.batch, tokens, heads, dim}
                                                      : Shape{shape.batch, heads, tokens, dim};
    return element.as_strided(full, {0, 0, 0, 0});
  };
  return explain(sized(shape.heads, shape.queries, shape.head_dim), sized(kv, keys, shape.head_dim),
                 sized(kv, keys, value_dim), options, score_mod);
}

std::string AttentionExplanation::to_string() const {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << "rule\n"
      << "  mask       " << mask << "\n";
  for (const std::string& note : mask_notes) out << "             " << note << "\n";
  out << "  positions  " << alignment << "\n"
      << "  empty row  " << empty_row << "\n"
      << "  scale      " << scale << " (" << scale_rule << ")\n";
  for (const std::string& step : scores) out << "  score      " << step << "\n";
  out << "  dropout    " << dropout_p << "\n"
      << "  capture    " << capture << "\n"
      << "plan\n"
      << "  kernel     " << kernel << " on " << target << ", " << threads
      << (threads == 1 ? " thread, " : " threads, ") << tasks << " tasks";
  if (key_splits > 1) out << ", keys split in " << key_splits;
  out << "\n";
  if (query_tile > 0) out << "  blocks     " << query_tile << " queries x " << key_block << " keys\n";
  if (useful_pairs > 0) {
    out << "  work       " << static_cast<int64_t>(useful_pairs) << " allowed pairs, "
        << static_cast<int64_t>(computed_pairs) << " computed\n";
  }
  out << "  memory     " << workspace_bytes << " B workspace, " << backward_workspace_bytes
      << " B in backward, " << output_bytes << " B output";
  if (capture_bytes > 0) out << ", " << capture_bytes << " B capture";
  out << "; the scores would take " << score_matrix_bytes << " B\n";
  for (const std::string& reason : reasons) out << "  because    " << reason << "\n";
  return std::move(out).str();
}

}  // namespace multihead
