// Modules of this program that are loaded when they are needed. A static program holds them instead.
#pragma once

#include <string>

#include "multihead/serve/sockets.h"

namespace multihead::cli {

/// The function of the module of sockets. Throws UsageError: `verb` needs it.
serve::RunSockets load_sockets(const std::string& verb);

}  // namespace multihead::cli
