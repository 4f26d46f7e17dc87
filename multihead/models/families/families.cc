// The families that can be read and written, in the order in which messages list them. Our own express
// everything and come last.
#include "multihead/core/error.h"
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail {

// One namespace a file of families/.
// clang-format off
namespace gpt2 { Family<LanguageModelConfig> gpt2(); }
namespace gpt_neox { Family<LanguageModelConfig> gpt_neox(); }
namespace opt { Family<LanguageModelConfig> opt(); }
namespace phi { Family<LanguageModelConfig> phi(); }
namespace llama { Family<LanguageModelConfig> llama(); }
namespace mistral { Family<LanguageModelConfig> mistral(); }
namespace qwen2 { Family<LanguageModelConfig> qwen2(); }
namespace qwen3 { Family<LanguageModelConfig> qwen3(); }
namespace phi3 { Family<LanguageModelConfig> phi3(); }
namespace gemma { Family<LanguageModelConfig> gemma(), gemma2(), gemma3(); }
namespace gptj { Family<LanguageModelConfig> gptj(); }
namespace stablelm { Family<LanguageModelConfig> stablelm(); }
namespace starcoder2 { Family<LanguageModelConfig> starcoder2(); }
namespace olmo2 { Family<LanguageModelConfig> olmo2(); }
namespace granite { Family<LanguageModelConfig> granite(); }
namespace smollm3 { Family<LanguageModelConfig> smollm3(); }
namespace gpt_neo { Family<LanguageModelConfig> gpt_neo(); }
namespace falcon { Family<LanguageModelConfig> falcon(); }
namespace bloom { Family<LanguageModelConfig> bloom(); }
namespace latent { Family<LanguageModelConfig> youtu(), minicpm3(); }
namespace eurobert { Family<LanguageModelConfig> eurobert(); }
namespace marian { Family<Seq2SeqConfig> marian(), pegasus(); }
namespace bart { Family<Seq2SeqConfig> bart(), mbart(); }
namespace t5 { Family<Seq2SeqConfig> t5(), mt5(); }
namespace m2m100 { Family<Seq2SeqConfig> m2m100(); }
namespace bert { Family<EncoderConfig> bert(), roberta(), xlm_roberta(), camembert(), mpnet(), electra(); }
namespace distilbert { Family<EncoderConfig> distilbert(); }
namespace modernbert { Family<EncoderConfig> modernbert(); }
namespace albert { Family<EncoderConfig> albert(); }
namespace nomic_bert { Family<EncoderConfig> nomic_bert(); }
namespace nomic_bert_moe { Family<EncoderConfig> nomic_bert_moe(); }
namespace jina_bert { Family<EncoderConfig> jina_bert(); }
namespace gte { Family<EncoderConfig> gte(), gte_new(); }
namespace jina_embeddings_v3 { Family<EncoderConfig> jina_embeddings_v3(), jina_xlm_roberta(); }
namespace deberta_v2 { Family<EncoderConfig> deberta_v2(); }
namespace esm { Family<EncoderConfig> esm(); }
namespace t5_encoder { Family<EncoderConfig> t5_encoder(), mt5_encoder(); }
namespace vit { Family<ImageEncoderConfig> vit(); }
namespace own {
Family<LanguageModelConfig> language_model();
Family<Seq2SeqConfig> seq2seq();
Family<EncoderConfig> encoder();
Family<ImageEncoderConfig> image_encoder();
}
// clang-format on

namespace {

// Qwen3Model of Qwen3ForCausalLM.
std::string base_of(const Family<LanguageModelConfig>& family) {
  if (!family.base.empty()) return family.base;
  const std::string& whole = family.architecture;
  for (const std::string_view head : {"ForCausalLM", "LMHeadModel"}) {
    if (whole.ends_with(head)) return whole.substr(0, whole.size() - head.size()) + "Model";
  }
  return whole;
}

// transformers lets every token see the whole text where a decoder's file says false, or null.
template <class Config>
Family<Config> with_causality(Family<Config> family, bool is_causal) {
  family.keys.push_back({"is_causal", [=](io::ConfigReader& r, const std::string& key, Config&) {
                           const Json* given = r.find(key);
                           if (given == nullptr || *given == Json(is_causal)) return;
                           if (!is_causal && given->is_null()) return;
                           r.fail(key, concat("must be ", Json(is_causal).dump(), ", got ",
                                              quote(given->dump(), 80), ", which is not supported"));
                         }});
  return family;
}

// transformers hides what follows in the encoder, too, where a file says true, and nothing in the decoder where it says
// anything else.
Family<Seq2SeqConfig> without_causality(Family<Seq2SeqConfig> family) {
  family.keys.push_back(
      {"is_causal", [](io::ConfigReader& r, const std::string& key, Seq2SeqConfig&) {
         if (r.find(key) != nullptr)
           r.fail(key, "is not supported: an encoder sees the whole text, a decoder what came before");
       }});
  return family;
}

// The same where transformers means it: in Llama and its kin, without a window.
Family<LanguageModelConfig> with_either_causality(Family<LanguageModelConfig> family) {
  using C = LanguageModelConfig;
  family.keys.push_back({"is_causal",
                         [](io::ConfigReader& r, const std::string& key, C& c) {
                           const Json* given = r.find(key);
                           c.causal = given == nullptr || r.boolean(key);
                           if (!c.causal && c.window > 0) r.fail(key, "false is not supported with a window");
                         },
                         [](const C& c, const std::string& key, Json& json) {
                           if (!c.causal) json[key] = false;
                         },
                         row_of(&C::causal)});
  return family;
}

// "architectures" tells whether there is an output layer.
Family<LanguageModelConfig> with_base(Family<LanguageModelConfig> family) {
  using C = LanguageModelConfig;
  const std::string whole = family.architecture, base = base_of(family);
  family.keys.push_back({"architectures",
                         [=](io::ConfigReader& r, const std::string& key, C& c) {
                           const std::vector<std::string> given = r.strings_or(key, {});
                           c.head = given.empty() || given[0] != base;
                         },
                         [=](const C& c, const std::string& key, Json& json) {
                           json[key] = Json(std::vector<Json>{c.head ? whole : base});
                         },
                         row_of(&C::head)});
  return family;
}

}  // namespace

template <>
const std::vector<Family<LanguageModelConfig>>& families() {
  static const std::vector<Family<LanguageModelConfig>> all = [] {
    std::vector<Family<LanguageModelConfig>> list;
    for (auto* family : {gpt2::gpt2, gpt_neox::gpt_neox, opt::opt, phi::phi})
      list.push_back(with_causality(with_base(family()), true));
    for (auto* family : {llama::llama, mistral::mistral, qwen2::qwen2, qwen3::qwen3, olmo2::olmo2,
                         granite::granite, smollm3::smollm3})
      list.push_back(with_either_causality(with_base(family())));
    for (auto* family : {phi3::phi3, gemma::gemma, gemma::gemma2, gemma::gemma3, gptj::gptj,
                         stablelm::stablelm, starcoder2::starcoder2, gpt_neo::gpt_neo, falcon::falcon,
                         bloom::bloom, latent::youtu, latent::minicpm3})
      list.push_back(with_causality(with_base(family()), true));
    list.push_back(with_causality(with_base(eurobert::eurobert()), false));
    list.push_back(own::language_model());
    return list;
  }();
  return all;
}

template <>
const std::vector<Family<Seq2SeqConfig>>& families() {
  static const std::vector<Family<Seq2SeqConfig>> all = [] {
    std::vector<Family<Seq2SeqConfig>> list;
    for (auto* family :
         {marian::marian, marian::pegasus, bart::bart, bart::mbart, t5::t5, t5::mt5, m2m100::m2m100})
      list.push_back(without_causality(family()));
    list.push_back(own::seq2seq());
    return list;
  }();
  return all;
}

template <>
const std::vector<Family<EncoderConfig>>& families() {
  static const std::vector<Family<EncoderConfig>> all = [] {
    std::vector<Family<EncoderConfig>> list;
    for (auto* family : {bert::bert,
                         bert::roberta,
                         bert::xlm_roberta,
                         bert::camembert,
                         bert::mpnet,
                         distilbert::distilbert,
                         bert::electra,
                         modernbert::modernbert,
                         albert::albert,
                         t5_encoder::t5_encoder,
                         t5_encoder::mt5_encoder,
                         nomic_bert::nomic_bert,
                         gte::gte,
                         gte::gte_new,
                         esm::esm,
                         jina_embeddings_v3::jina_embeddings_v3,
                         jina_embeddings_v3::jina_xlm_roberta,
                         deberta_v2::deberta_v2,
                         jina_bert::jina_bert,
                         nomic_bert_moe::nomic_bert_moe})
      list.push_back(with_causality(family(), false));
    list.push_back(own::encoder());
    return list;
  }();
  return all;
}

template <>
const std::vector<Family<ImageEncoderConfig>>& families() {
  static const std::vector<Family<ImageEncoderConfig>> all = {with_causality(vit::vit(), false),
                                                              own::image_encoder()};
  return all;
}

void add_pair(WeightMap& map, const std::string& ours, const std::string& theirs, bool bias) {
  map.push_back({ours + ".weight", {{theirs + ".weight"}}});
  if (bias) map.push_back({ours + ".bias", {{theirs + ".bias"}}});
}

void add_pairs(WeightMap& map, const std::string& ours, const std::string& theirs,
               std::initializer_list<std::pair<const char*, const char*>> names, bool bias) {
  for (const auto& [our_name, their_name] : names) add_pair(map, ours + our_name, theirs + their_name, bias);
}

std::vector<ExtraTensor> unread(std::initializer_list<const char*> suffixes) {
  std::vector<ExtraTensor> list;
  for (const char* suffix : suffixes) list.push_back({suffix});
  return list;
}

void add_projections(WeightMap& map, const std::string& attention, const StoredProjections& stored) {
  const auto& [prefix, names, query_rows, key_rows, has_bias] = stored;
  for (const char* kind : {"weight", "bias"}) {
    if (kind[0] == 'b' && !has_bias) continue;
    map.push_back({concat(attention, ".in_proj_", kind),
                   {{concat(prefix, names[0], ".", kind), query_rows},
                    {concat(prefix, names[1], ".", kind), key_rows},
                    {concat(prefix, names[2], ".", kind), key_rows}}});
  }
}

}  // namespace multihead::models::detail
