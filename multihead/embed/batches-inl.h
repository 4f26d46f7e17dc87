// Many texts, a bounded number of tokens at a time. Private to embed/.
#pragma once

#include <cstdint>
#include <functional>

#include "multihead/core/threads/parallel.h"
#include "multihead/models/encoder.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::embed {

/// Calls `use` on sequences [first, first + rows.sequences()) until all `count` are done; `encode` makes one,
/// from many threads. `batch_tokens` bounds what is computed at a time; a longer sequence comes alone.
void each_batch(int64_t count, int64_t batch_tokens, const std::function<void(int64_t, int64_t)>& progress,
                FunctionRef<text::Encoding(int64_t)> encode,
                FunctionRef<void(const models::TokenRows& rows, int64_t first)> use);

}  // namespace multihead::embed
