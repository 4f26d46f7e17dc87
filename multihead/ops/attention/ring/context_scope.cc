#include "multihead/ops/attention/ring/context_scope.h"

#include <utility>

#include "multihead/core/error.h"

namespace multihead {
namespace {

thread_local const ContextScope* current_scope = nullptr;

}  // namespace

ContextScope::ContextScope(distributed::Group& group, const SequenceShards& shards)
    : group_(group), shards_(shards), outer_(current_scope) {
  MH_CHECK(shards.ranks() == group.size(), ValueError, "ContextScope: shards are for ", shards.ranks(),
           " ranks, the group has ", group.size());
  current_scope = group.size() > 1 ? this : nullptr;
}

ContextScope::~ContextScope() { current_scope = outer_; }
const ContextScope* ContextScope::current() { return current_scope; }

namespace detail {

NoContextParallel::NoContextParallel() : outer_(std::exchange(current_scope, nullptr)) {}
NoContextParallel::~NoContextParallel() { current_scope = outer_; }

}  // namespace detail
}  // namespace multihead
