// The families that can be read and written, in the order in which messages list them. Our own express
// everything and come last.
#include "multihead/models/family-inl.h"

namespace multihead::models::detail {

Family<LanguageModelConfig> gpt2(), gpt_neox(), opt(), phi(), llama(), mistral(), qwen2(), qwen3(), phi3(),
    gemma(), gemma2(), gemma3(), own_language_model();
Family<Seq2SeqConfig> marian(), own_seq2seq();
Family<EncoderConfig> bert(), roberta(), xlm_roberta(), camembert(), distilbert(), electra(), own_encoder();

template <>
const std::vector<Family<LanguageModelConfig>>& families() {
  static const std::vector<Family<LanguageModelConfig>> all = {
      gpt2(),  gpt_neox(), opt(),   phi(),    llama(),  mistral(),           qwen2(),
      qwen3(), phi3(),     gemma(), gemma2(), gemma3(), own_language_model()};
  return all;
}

template <>
const std::vector<Family<Seq2SeqConfig>>& families() {
  static const std::vector<Family<Seq2SeqConfig>> all = {marian(), own_seq2seq()};
  return all;
}

template <>
const std::vector<Family<EncoderConfig>>& families() {
  static const std::vector<Family<EncoderConfig>> all = {bert(),       roberta(), xlm_roberta(), camembert(),
                                                         distilbert(), electra(), own_encoder()};
  return all;
}

}  // namespace multihead::models::detail
