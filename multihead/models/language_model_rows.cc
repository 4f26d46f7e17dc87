// A language model's features of sequences without padding, for embeddings.
#include "multihead/models/language_model.h"
#include "multihead/nn/points-inl.h"
#include "multihead/ops/dropout.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/embedding.h"
#include "multihead/ops/shape.h"

namespace multihead::models {

using nn::detail::point;

Tensor LanguageModel::embed(const TokenRows& rows, Rng* rng) const {
  const LanguageModelConfig& c = config_;
  Tensor x = point("embed", words(rows.tokens), {.rows = 0});
  if (c.positions == Positions::sinusoidal) {
    const Tensor table = nn::sinusoidal_positions(rows.longest(), c.embed_dim).to(x.dtype());
    x = add(x, embedding(table, rows.places()));
  } else if (c.positions == Positions::learned) {
    x = add(x, point("pos_embed", position_embedding(rows.places(c.position_offset)), {.rows = 0}));
  }
  return dropout(x, c.dropout_p, rng);
}

Tensor LanguageModel::features(const TokenRows& rows, Rng* rng) const {
  rows.check("LanguageModel", longest());
  const int64_t count = rows.tokens.size(0);
  const Tensor x = reshape(embed(rows, rng), {1, count, config_.embed_dim});
  LanguageModelCall call;
  call.rng = rng, call.rows = &rows;
  return reshape(run_layers(0, x, call, {0}, {}), {count, config_.embed_dim});
}

}  // namespace multihead::models
