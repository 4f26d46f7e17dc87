#include "multihead/kernels/matmul/amx_product-inl.h"

#include <cmath>

namespace multihead::kernels {
namespace {

bool bias_alone(const EngineArgs& g) {
  return g.pre_activation == nullptr && g.pre_activation16 == nullptr && g.activation == Activation::none &&
         g.factor == nullptr && g.residual == nullptr && g.residual16 == nullptr;
}

void transpose_sums(const float* from, float* to) {
  for (int64_t i = 0; i < kBlockLines; i += kAmxLines) {
    for (int64_t j = 0; j < kBlockLines; j += kAmxLines)
      transpose_tile(from + i * kBlockLines + j, kBlockLines, to + j * kBlockLines + i, kBlockLines);
  }
}

float number(const TileLines& x, int64_t line, int64_t k) {
  return x.narrow != nullptr ? static_cast<float>(*static_cast<const BFloat16*>(x.at(line, k)))
                             : *static_cast<const float*>(x.at(line, k));
}

}  // namespace

TileProduct::TileProduct(const EngineArgs& args, PartScheme of, TileUnit by) : g(args), scheme(of), unit(by) {
  const bool ta = g.ta == Transpose::yes, tb = g.tb == Transpose::yes;
  x = {g.a, g.a16, ta ? 1 : g.lda, ta ? g.lda : 1, g.m, g.k};
  y = {g.b, g.b16, tb ? g.ldb : 1, tb ? 1 : g.ldb, g.n, g.k};
}

BlockWriter::BlockWriter(const TileProduct& product)
    : p_(product),
      tiles_(product.unit, product.row_scales != nullptr ? 0 : product.scheme.parts, product.swapped),
      plain_(bias_alone(product.g)),
      in_rows_(!product.swapped && (plain_ || product.g.c16 == nullptr)) {}

void BlockWriter::multiply(TileBlock& block, int64_t x, int64_t y, PartOfK part, float* sums) {
  block.from = nullptr;
  if (!part.first) {
    block.from = sums, block.from_stride = kBlockLines;
  } else if (p_.g.accumulate) {
    block.from = start_of(x, y, block.from_stride);
  }
  if (stored_to_ != nullptr && block.from == stored_to_) {
    tiles_.store(stored_to_);
    stored_to_ = nullptr;
  }
  tiles_.multiply(block, stored_to_, rows_);
  if (waits_) finish_pending();
  stored_to_ = part.last ? sums_ : sums;
  if (part.last) wait_for(x, y);
}

void BlockWriter::wait_for(int64_t x, int64_t y) {
  waits_ = true, x_ = x, y_ = y;
  if (in_rows_) set_rows(rows_, in_c(x, y));
}

void BlockWriter::flush() {
  if (stored_to_ != nullptr) tiles_.store(stored_to_);
  stored_to_ = nullptr;
  if (!waits_) return;
  finish_tile_rows(rows_, p_.unit);
  finish_pending();
}

void BlockWriter::keep_sums(bool bare) {
  if (bare == bare_) return;
  flush();
  bare_ = bare;
}

// Completes the pending block, whose sums lie in memory or, if they could be finished while the next
// block was multiplied, in C.
void BlockWriter::finish_pending() {
  waits_ = false, rows_.rows = 0;
  if (in_rows_ && (plain_ || bare_)) return;
  Block b = in_c(x_, y_);
  if (!p_.swapped) return finish_block(p_.g, b);
  transpose_sums(sums_, turned_);
  b.sums = turned_;
  finish(b);
}

void BlockWriter::finish(const Block& block) const {
  if (plain_ || p_.g.c16 == nullptr) {
    TileRows rows;
    set_rows(rows, block);
    finish_tile_rows(rows, p_.unit);
  }
  if (!plain_ && !bare_) finish_block(p_.g, block);
}

Block BlockWriter::in_c(int64_t x, int64_t y) const {
  Block b = p_.in_c(x, std::min(kBlockLines, p_.x.lines - x), y, std::min(kBlockLines, p_.y.lines - y));
  b.sums = sums_, b.stride = kBlockLines;
  return b;
}

void BlockWriter::set_rows(TileRows& rows, const Block& b) const {
  const EngineArgs& g = p_.g;
  const int64_t at = b.row * g.ldc + b.column;
  rows.sums = b.sums, rows.sums_stride = b.stride;
  rows.bf16 = g.c16 != nullptr;
  rows.to = rows.bf16 ? static_cast<void*>(g.c16 + at) : g.c + at;
  rows.stride = (rows.bf16 ? 2 : 4) * g.ldc;
  rows.rows = b.rows, rows.columns = b.columns;
  if (p_.row_scales != nullptr) {
    rows.x_scales = p_.row_scales + b.row, rows.y_scales = p_.column_scales + b.column;
  }
  rows.bias = plain_ && !bare_ && g.bias != nullptr ? g.bias + b.column : nullptr;
}

// The previous contents of C as rows of X, in place or copied.
const float* BlockWriter::start_of(int64_t x, int64_t y, int64_t& stride) {
  const Block b = in_c(x, y);
  const float* c = p_.g.c + b.row * p_.g.ldc + b.column;
  stride = p_.g.ldc;
  if (!p_.swapped && b.rows == kBlockLines && b.columns == kBlockLines) return c;
  alignas(64) float copy[kBlockSums] = {};
  for (int64_t i = 0; i < b.rows; ++i) std::copy_n(c + i * p_.g.ldc, b.columns, copy + i * kBlockLines);
  stride = kBlockLines;
  if (p_.swapped) {
    transpose_sums(copy, start_);
  } else {
    std::copy_n(copy, kBlockSums, start_);
  }
  return start_;
}

void add_not_finite(const TileProduct& p, const Block& c) {
  const TileLines &a = p.swapped ? p.y : p.x, &b = p.swapped ? p.x : p.y;
  for (int64_t k = 0; k < p.g.k; ++k) {
    for (int64_t j = c.column; j < c.column + c.columns; ++j) {
      const float right = number(b, j, k);
      const bool all = !std::isfinite(right);
      for (int64_t i = c.row; i < c.row + c.rows; ++i) {
        const float left = number(a, i, k);
        if (all || !std::isfinite(left)) p.g.c[i * p.g.ldc + j] += left * right;
      }
    }
  }
  finish_block(p.g, c);
}

}  // namespace multihead::kernels
