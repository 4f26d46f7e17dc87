// The table of what is answered, a row each.
#include "multihead/serve/dialects/dialects-inl.h"

namespace multihead::serve {

std::span<const Route> routes() {
  static const Route kRoutes[] = {
      {"GET", "/", &kOpenAiErrors, greet, true},
      {"GET", "/health", &kOpenAiErrors, health, true},
      {"GET", "/v1/models", &kOpenAiErrors, list_models},
      {"GET", "/v1/models/*", &kOpenAiErrors, show_model},
      {"POST", "/v1/embeddings", &kOpenAiErrors, openai_embeddings},
      {"POST", "/v1/completions", &kOpenAiErrors, openai_completions},
      {"POST", "/v1/chat/completions", &kOpenAiErrors, openai_chat},
      {"POST", "/v1/responses", &kOpenAiErrors, openai_responses},
      {"POST", "/v1/rerank", &kOpenAiErrors, rerank},
      {"POST", "/v2/rerank", &kOpenAiErrors, rerank},
      {"POST", "/rerank", &kTeiErrors, rerank},
      {"POST", "/embed", &kTeiErrors, tei_embed},
      {"POST", "/predict", &kTeiErrors, tei_predict},
      {"GET", "/info", &kTeiErrors, tei_info},
      {"GET", "/api/tags", &kOllamaErrors, ollama_tags},
      {"POST", "/api/show", &kOllamaErrors, ollama_show},
      {"GET", "/api/version", &kOllamaErrors, ollama_version},
      {"GET", "/api/ps", &kOllamaErrors, ollama_ps},
      {"POST", "/api/embed", &kOllamaErrors, ollama_embed},
      {"POST", "/api/embeddings", &kOllamaErrors, ollama_embedding},
      {"POST", "/api/chat", &kOllamaErrors, ollama_chat},
      {"POST", "/api/generate", &kOllamaErrors, ollama_generate},
      {"POST", "/tokenize", &kOpenAiErrors, tokenize},
      {"POST", "/detokenize", &kOpenAiErrors, detokenize},
      {"GET", "/metrics", &kOpenAiErrors, metrics},
      {"GET", "/openapi.json", &kOpenAiErrors, openapi},
  };
  return kRoutes;
}

}  // namespace multihead::serve
