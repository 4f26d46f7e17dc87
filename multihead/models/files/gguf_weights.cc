#include <algorithm>
#include <memory>

#include "multihead/core/error.h"
#include "multihead/core/memory/memory.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/models/files/finite_weights-inl.h"
#include "multihead/models/files/gguf_weights-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"

namespace multihead::models::detail {
namespace {

using nn::PackedLinear;
using nn::WeightDtype;

// Matrices that files keep in f32 or f16 whatever they are quantised as, and that no model packs.
constexpr const char* kNeverPacked[] = {"position_embd.", "token_types.", "attn_rel_b.",
                                        "ffn_gate_inp.",  "dense_2.",     "dense_3."};

constexpr const char* kExperts = "_exps.";  // tensors of several matrices

bool is_matrix(const std::string& name, const io::GgufTensor& tensor) {
  const auto is_part = [&](const char* part) { return name.find(part) != name.npos; };
  const size_t rank = is_part(kExperts) ? 3 : 2;
  return tensor.type != nullptr && tensor.shape.size() == rank && std::ranges::none_of(kNeverPacked, is_part);
}

bool is_half(const BlockFormat& type) { return kernels::packed_dtype_of(type) == WeightDtype::f16; }

// Where the head's row `row` of ours lies in the file.
int64_t stored_row(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim * head_dim, place = row % head_dim, half = head_dim / 2;
  return head + place % half * 2 + place / half;
}

}  // namespace

bool is_packed(const io::GgufFile& file) {
  bool quantised = false, halves = true;
  for (const auto& [name, tensor] : file.tensors()) {
    if (!is_matrix(name, tensor)) continue;
    quantised |= tensor.type->block > 1;
    halves &= is_half(*tensor.type);
  }
  return quantised || halves;
}

void check_gguf_size(const io::GgufFile& file, int64_t weights, bool as_stored) {
  int64_t numbers = 0;
  double bytes = 0;
  for (const auto& [name, tensor] : file.tensors()) {
    numbers += tensor.numel();
    if (tensor.type == nullptr) continue;  // refused by name when it is read
    const double each = !as_stored || !is_matrix(name, tensor) ? 4 : is_half(*tensor.type) ? 2.25 : 1.25;
    bytes += each * static_cast<double>(tensor.numel());
  }
  MH_CHECK(weights <= numbers, FormatError, file.path(), ": the metadata needs at least ", weights,
           " weights, but the file has ", numbers);
  check_memory(bytes, file.path() + ": loading its weights");
}

Tensor exchanged(const Tensor& rows, int64_t heads, int64_t outer) {
  const int64_t inner = rows.size(0) / heads / outer, columns = rows.rank() > 1 ? rows.size(1) : 1;
  const Shape strides = {outer * inner * columns, columns, inner * columns, 1};
  return reshape(rows.as_strided({heads, inner, outer, columns}, strides), rows.shape());
}

GgufWeights::GgufWeights(const io::GgufFile& file, WeightMap map, GgufLayout layout)
    : file_(file), map_(std::move(map)), layout_(std::move(layout)) {}

const WeightRule& GgufWeights::rule_of(const std::string& parameter) const {
  return *std::ranges::find(map_, parameter, &WeightRule::parameter);
}

// Experts have a tensor together: "experts.in.3".
GgufWeights::Matrix GgufWeights::matrix_of(const std::string& name, const Tensor& weight) const {
  const int64_t out = weight.size(0), in = weight.size(1);
  if (std::ranges::find(map_, name, &WeightRule::parameter) != map_.end()) return {rule_of(name), 0, out, in};
  const size_t dot = name.rfind('.');
  return {rule_of(name.substr(0, dot)), std::stoll(name.substr(dot + 1)) * out, out, in};
}

GgufWeights::Views GgufWeights::views(const std::vector<nn::NamedTensor>& parameters) const {
  Views views = stored_views(parameters, map_);
  for (auto& [name, view] : views) view = layout_.view(name, view);
  return views;
}

void GgufWeights::check(const Views& views) const {
  std::string problems;
  std::set<std::string> used;
  for (const auto& [name, view] : views) {
    const auto found = file_.tensors().find(name);
    used.insert(name);
    if (found == file_.tensors().end()) {
      problems += concat("\n  missing ", name, " ", view.shape());
    } else if (const auto& shape = found->second.shape;
               !std::equal(shape.begin(), shape.end(), view.shape().begin(), view.shape().end())) {
      problems += concat("\n  ", name, ": expected ", view.shape(), ", got [", Enumeration(shape), "]");
    }
  }
  for (const auto& [name, tensor] : file_.tensors()) {
    if (!used.contains(name) && !layout_.others.contains(name)) problems += "\n  unexpected " + name;
  }
  MH_CHECK(problems.empty(), FormatError, file_.path(), ": the tensors do not fit the model:", problems);
}

Tensor GgufWeights::load(const std::string& name) const {
  const Tensor stored = file_.load(name);
  check_finite(file_.path(), name, stored);
  if (layout_.adds_one && name.ends_with("norm.weight")) return sub(stored, Tensor::ones({1}));
  const int64_t heads = layout_.paired_heads(name);
  return heads > 0 ? exchanged(stored, heads, layout_.head_dim / 2) : stored;
}

// The type of all parts; null if they differ.
const BlockFormat* GgufWeights::type_of(const WeightRule& rule) const {
  const auto own = [&](const WeightPart& part) { return file_.tensors().at(part.name).type; };
  const BlockFormat* type = own(rule.parts[0]);
  return std::ranges::all_of(rule.parts, [&](const WeightPart& part) { return own(part) == type; }) ? type
                                                                                                    : nullptr;
}

WeightDtype GgufWeights::stored_dtype(const WeightRule& rule) const {
  const BlockFormat* type = type_of(rule);
  return (type != nullptr ? kernels::packed_dtype_of(*type) : std::nullopt).value_or(WeightDtype::q8);
}

Tensor GgufWeights::load(const Matrix& matrix) const {
  const std::string& name = matrix.rule.parts[0].name;
  const io::GgufTensor& stored = file_.tensors().at(name);
  if (stored.shape.size() == 3) {
    std::vector<uint8_t> bytes(static_cast<size_t>(matrix.out * file_.row_bytes(name)));
    file_.load_rows(name, matrix.first, matrix.out, bytes.data());
    const Tensor own = Tensor::empty({matrix.out, matrix.in}, Dtype::f32);
    stored.type->decode(bytes.data(), own.numel() / stored.type->block, own.data<float>());
    check_finite(file_.path(), name, own);
    return own;
  }
  std::vector<Tensor> parts;
  for (const WeightPart& part : matrix.rule.parts) parts.push_back(load(part.name));
  return parts.size() == 1 ? parts[0] : multihead::concat(parts, 0);
}

PackedLinear GgufWeights::pack(const Matrix& matrix, WeightDtype dtype) const {
  return {load(matrix), dtype};
}

// Blocks that a packed format takes over stay as they are; other types, and mixed ones, are quantised again,
// to q8.
PackedLinear GgufWeights::pack_stored(const Matrix& matrix) const {
  const BlockFormat* type = type_of(matrix.rule);
  if (type == nullptr || !kernels::packed_dtype_of(*type)) return pack(matrix, WeightDtype::q8);
  const auto read = [&](int64_t begin, int64_t count, uint8_t* to) {
    read_rows(matrix.rule, matrix.first + begin, count, to);
  };
  PackedLinear packed({read, *type}, matrix.out, matrix.in);
  check_finite(file_.path(), matrix.rule.parts[0].name, packed);
  return packed;
}

// Rows [begin, begin + count) of the parts one below the other.
void GgufWeights::read_rows(const WeightRule& rule, int64_t begin, int64_t count, uint8_t* to) const {
  for (const WeightPart& part : rule.parts) {
    const auto& shape = file_.tensors().at(part.name).shape;
    const int64_t rows = shape.size() == 3 ? shape[0] * shape[1] : shape[0],
                  own = std::clamp(rows - begin, int64_t{0}, count);
    if (own > 0) {
      layout_.paired_heads(part.name) > 0 ? read_pairs(part.name, begin, own, to)
                                          : file_.load_rows(part.name, begin, own, to);
      to += own * file_.row_bytes(part.name);
    }
    count -= own, begin = std::max(begin - rows, int64_t{0});
  }
}

// Out of the whole heads that they belong to.
void GgufWeights::read_pairs(const std::string& name, int64_t begin, int64_t count, uint8_t* to) const {
  const int64_t head = layout_.head_dim, bytes = file_.row_bytes(name), first = begin / head * head,
                last = (begin + count + head - 1) / head * head;
  const auto rows = std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>((last - first) * bytes));
  file_.load_rows(name, first, last - first, rows.get());
  for (int64_t row = begin; row < begin + count; ++row) {
    to = std::copy_n(rows.get() + (stored_row(row, head) - first) * bytes, bytes, to);
  }
}

}  // namespace multihead::models::detail
