// Guards gradients of parameters shared between threads.
#pragma once

#include <mutex>

namespace multihead {

struct GradientSlot;

namespace detail {

/// The mutex of a slot, one of a few that all slots share.
std::mutex& gradient_mutex(const GradientSlot& slot);

}  // namespace detail
}  // namespace multihead
