// Attention over a sequence that is longer than one rank's memory.
#pragma once

#include "multihead/distributed/group.h"
#include "multihead/ops/attention/options.h"
#include "multihead/ops/attention/ring/shards.h"
#include "multihead/ops/attention/score_mod.h"

namespace multihead {

/// Self-attention of a sequence of which each rank of a group has its shards.rows(rank): the rows of
/// attention() on the whole, and their gradients, bit for bit. Every rank calls it at the same time, and so
/// runs the backward; `group` lives until then.
///
/// Chunks of keys and values pass through the ranks in ascending order and meet each rank's queries there,
/// whose running (maximum, sum, Σ p · value) is kept between them. In the backward keys and values pass
/// again, for the gradient of the queries, and then the queries for those of keys and values: scores are made
/// twice, so that no sum has to travel. Only ranks whose rows a chunk can meet under the mask see it.
///
/// Shapes    query [B, H, T', D], key [B, Hkv, T', D], value [B, Hkv, T', Dv] -> [B, H, T', Dv], T' of the
/// rank;
///           Layout::bthd swaps H and T'
/// Options   are those of the whole: masks, biases and lengths have T rows and columns, options.rng is in the
///           same state everywhere. options.lse is the rank's own [B, H, T'].
/// Gradient  query, key, value
/// Memory    O(T / R): its rows, and two chunks of what passes. But where a result is not finite although
///           something is masked out, in f64, without vector instructions, for another empty_row than zero,
///           for a capture and for gradients of biases, slopes, tables, sinks and captured tensors everything
///           is gathered on every rank, which computes the whole; those gradients are then whole everywhere.
/// Messages  of n = 4 bytes a number (forward, bf16: 2), where every chunk of `rows` goes to `others` ranks:
///             forward   Σ rows · others · B · Hkv · (D + Dv) · n
///             backward  the same with n = 4, and Σ rows · others · B · H · (D + Dv + 2) · 4 for the queries
///           and 2 (R - 1) bytes each for the agreement that all is finite. Σ rows · others is (R - 1) · T
///           without a mask, and 1 - 1/(2n) of that with causal() and n chunks a rank, of equal size.
/// Throws    as attention(); GroupError if a rank is lost
/// Source    Liu et al. 2023 (Ring Attention) for the idea
Tensor ring_attention(distributed::Group& group, const SequenceShards& shards, const Tensor& query,
                      const Tensor& key, const Tensor& value, const AttentionOptions& options = {},
                      const ScoreMod& score_mod = {});

/// Every rank's rows, from each rank's own along this axis. Gradient: the rank's rows of the gradient, as all
/// compute the same from it.
Tensor gather_rows(distributed::Group& group, const SequenceShards& shards, const Tensor& own, int axis);
/// The rank's own rows. Gradient: gathered from the ranks.
Tensor own_rows(distributed::Group& group, const SequenceShards& shards, const Tensor& whole, int axis);

}  // namespace multihead
