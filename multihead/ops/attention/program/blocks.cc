// Classifies whole blocks of a mask exactly, and tells whether two programs are the same.
#include <algorithm>
#include <functional>
#include <string_view>
#include <vector>

#include "multihead/ops/attention/program/program-inl.h"

namespace multihead::program {
namespace {

using kernels::BlockClass;

BlockClass class_of(const ScoreProgram& program, kernels::KeepTile tile, std::vector<uint8_t>& keep) {
  const BlockClass known = program.classify(tile, 0);
  if (known != BlockClass::partial) return known;
  const auto size = static_cast<size_t>(tile.query_count * tile.key_count);
  keep.resize(size);
  tile.keep = keep.data(), tile.stride = tile.query_count;
  program.fill(tile, 0);
  const auto kept = std::count(keep.begin(), keep.end(), uint8_t{1});
  if (kept == 0) return BlockClass::empty;
  return static_cast<size_t>(kept) == size ? BlockClass::full : BlockClass::partial;
}

uint64_t mixed(uint64_t hash, uint64_t x) {
  return (hash ^ (x + 0x9E3779B97F4A7C15U + (hash << 6) + (hash >> 2))) * 0xD1B54A32D192ED03U;
}

}  // namespace

Tensor ScoreProgram::block_classes(const TilePlace& sizes, int64_t rows, int64_t columns) const {
  const int64_t batch = uses(Op::batch) ? sizes.batch : 1, heads = uses(Op::head) ? sizes.head : 1;
  const int64_t down = (sizes.queries + rows - 1) / rows, across = (sizes.keys + columns - 1) / columns;
  Tensor classes = Tensor::empty({batch, heads, down, across}, Dtype::i32);
  int32_t* to = classes.data<int32_t>();
  std::vector<uint8_t> keep;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t q = 0; q < sizes.queries; q += rows) {
        for (int64_t k = 0; k < sizes.keys; k += columns) {
          *to++ = static_cast<int32_t>(class_of(
              *this,
              {nullptr, 0, b, h, q, std::min(rows, sizes.queries - q), k, std::min(columns, sizes.keys - k)},
              keep));
        }
      }
    }
  }
  return classes;
}

template <class T>
std::vector<T> ScoreProgram::differentiate(const Tensor& scores, const Tensor& d_results) const {
  const int64_t heads = scores.size(1), keys = scores.size(2), queries = scores.size(3);
  std::vector<T> sums(1);  // never null: gradients run backwards from d_results
  for (const Learnt& x : learnt_) sums.resize(sums.size() + static_cast<size_t>(x.tensor.numel()));
  for (int64_t n = 0; n < scores.size(0) * heads; ++n) {
    const int64_t at = n * keys * queries;
    const kernels::ScoreTile tile{scores.data<T>() + at, queries, n / heads, n % heads, 0, queries, 0, keys};
    backward<T>(tile, 0, d_results.data<T>() + at, sums.data());
    apply<T>(tile, 0, nullptr);
  }
  sums.pop_back();
  return sums;
}
template std::vector<float> ScoreProgram::differentiate(const Tensor&, const Tensor&) const;
template std::vector<double> ScoreProgram::differentiate(const Tensor&, const Tensor&) const;

uint64_t ScoreProgram::fingerprint() const {
  uint64_t hash = code_.size();
  for (const Instruction& in : code_) {
    for (const int64_t x : {static_cast<int64_t>(in.op), int64_t{in.a}, int64_t{in.b}, int64_t{in.c},
                            int64_t{in.d}, int64_t{in.table}, static_cast<int64_t>(in.kind)}) {
      hash = mixed(hash, static_cast<uint64_t>(x));
    }
    hash = mixed(hash, std::hash<double>()(in.number));
  }
  for (const Tensor& table : tables_) {
    const auto* bytes = static_cast<const char*>(table.raw());
    const size_t count = table.bytes();
    hash = mixed(hash, std::hash<std::string_view>()({bytes, count}));
  }
  return hash;
}

}  // namespace multihead::program
