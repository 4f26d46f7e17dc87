// What a recording still needs. Internal to the library and its bindings.
#pragma once

#include <string_view>

namespace multihead::detail {

/// Throws ValueError if a Tape of this thread holds operations that no backward() has consumed: it would read tensors as
/// they are then. Whatever writes into tensors that are in use asks first. `who` begins the message.
void refuse_pending_backward(std::string_view who);

}  // namespace multihead::detail
