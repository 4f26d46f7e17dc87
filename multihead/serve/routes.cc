// The table of what is answered, a row each.
#include "multihead/serve/dialects/dialects-inl.h"

namespace multihead::serve {

std::span<const Route> routes() {
  static constexpr Route kRoutes[] = {
      {"GET", "/health", &kOpenAiErrors, health, true},
      {"GET", "/v1/models", &kOpenAiErrors, list_models},
      {"GET", "/v1/models/*", &kOpenAiErrors, show_model},
      {"POST", "/v1/embeddings", &kOpenAiErrors, openai_embeddings},
      {"POST", "/v1/completions", &kOpenAiErrors, openai_completions},
      {"POST", "/v1/chat/completions", &kOpenAiErrors, openai_chat},
  };
  return kRoutes;
}

}  // namespace multihead::serve
