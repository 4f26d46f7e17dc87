// multihead prune
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

#include "cli/model_dir.h"
#include "cli/parser.h"
#include "cli/streams.h"
#include "cli/texts.h"
#include "multihead/core/text/numbers-inl.h"
#include "multihead/io/json.h"
#include "multihead/models/surgery/prune.h"
#include "multihead/text/corpus/corpus.h"
#include "multihead/train/data/windows.h"

namespace multihead::cli {
namespace {

using Lists = std::vector<std::vector<int64_t>>;

/// The attentions of a kind, one per layer: what is pruned already, and what shall be.
struct Part {
  std::string name;   // in --heads; empty: a language model's
  std::string stack;  // of its points: "decoder."
  const char* point;
  int64_t layers, heads;
  Lists before;
  Lists remove = {};
  std::vector<std::vector<double>> importance = {};  // with removed heads at 0

  int64_t kept(const Lists& pruned) const {
    int64_t count = layers * heads;
    for (const auto& list : pruned) count -= std::ssize(list);
    return count;
  }
};

std::vector<std::vector<double>> importance_at(const models::Importance& all, const Part& part,
                                               const char* point) {
  std::vector<std::vector<double>> result;
  for (int64_t i = 0; i < part.layers; ++i) {
    const auto found = all.find(concat(part.stack, "layers.", i, ".", point));
    result.push_back(found == all.end() ? std::vector<double>() : found->second);
  }
  return result;
}

// Under the numbers that heads had before anything was pruned.
void number_as_before(Part& part) {
  for (size_t i = 0; i < part.importance.size(); ++i) {
    std::vector<double> wide(static_cast<size_t>(part.heads), 0);
    auto next = part.importance[i].begin();
    for (int64_t head = 0; head < part.heads; ++head) {
      if (!part.before.empty() && std::ranges::count(part.before[i], head) > 0) continue;
      wide[static_cast<size_t>(head)] = *next++;
    }
    part.importance[i] = std::move(wide);
  }
}

int64_t number(std::string_view digits) { return spelled_number<int64_t>(digits).value_or(-1); }

// "0.3,1.2" or "encoder.0.3,cross.1.2"
void choose(std::vector<Part>& parts, const std::string& text) {
  std::istringstream words(text + ",");
  for (std::string word; std::getline(words, word, ',');) {
    const size_t last = word.rfind('.'),
                 first = last == word.npos || last == 0 ? word.npos : word.rfind('.', last - 1);
    const std::string name = first == word.npos ? "" : word.substr(0, first);
    const auto part = std::ranges::find(parts, name, &Part::name);
    const size_t begin = first == word.npos ? 0 : first + 1;
    const int64_t layer = last == word.npos ? -1 : number(std::string_view(word).substr(begin, last - begin)),
                  head = last == word.npos ? -1 : number(std::string_view(word).substr(last + 1));
    const bool known =
        part != parts.end() && layer >= 0 && layer < part->layers && head >= 0 && head < part->heads;
    if (!known) {
      const Part& example = parts.back();
      throw UsageError(
          fmt::format("--heads: expected {}LAYER.HEAD with layers 0 to {} and heads 0 to {}, got {}",
                      example.name.empty() ? "" : "encoder., decoder. or cross. and ", example.layers - 1,
                      example.heads - 1, quote(word)));
    }
    part->remove.resize(static_cast<size_t>(part->layers));
    part->remove[static_cast<size_t>(layer)].push_back(head);
  }
}

// One ranking over all parts.
void choose(std::vector<Part>& parts, double keep_ratio, int64_t group) {
  std::vector<std::vector<double>> all;
  for (const Part& part : parts) all.insert(all.end(), part.importance.begin(), part.importance.end());
  Lists removed = models::least_important(all, keep_ratio, group);
  auto next = removed.begin();
  for (Part& part : parts) {
    part.remove.assign(next, next + part.layers);
    next += part.layers;
  }
}

Lists fewest(const std::vector<std::vector<double>>& importance, double keep_ratio) {
  Lists removed;
  for (const auto& layer : importance) removed.push_back(models::least_important({layer}, keep_ratio)[0]);
  return removed;
}

class Prune : public Verb {
 public:
  Prune()
      : Verb("prune", "remove attention heads and feed-forward units from a model",
             {{"multihead prune model --out small --heads 0.3,1.2",
               "two heads of a language model, as LAYER.HEAD"},
              {"multihead prune model --out small --keep-ratio 0.5 --data austen.txt",
               "removes the half of the heads that is less important on this text"},
              {"multihead prune translator --out small --keep-ratio 0.7 --keep-units 0.5 --data valid.tsv",
               "a translator; fine-tune it afterwards: train seq2seq --init small"},
              {"multihead prune model --out grouped --kv-heads 2",
               "grouped-query attention, by averaging keys and values of heads"}}) {}

  void declare(Flags& flags) override {
    flags.positional("DIR", folder_, "model folder: a language model or a translator");
    flags.output("out", "DIR", out_, "folder to write (required)");
    declare_overwrite(flags, overwrites_);
    flags.text("heads", "LIST", heads_,
               "heads to remove: 0.3,1.2 (layer.head); translators: encoder.0.3,decoder.1.2,cross.0.1");
    flags.number("keep-ratio", keep_heads_,
                 "keep this fraction of all heads, those that matter most on --data",
                 {.least = 0, .most = 1, .open = true});
    flags.number("keep-units", keep_units_, "keep this fraction of the feed-forward units of each layer",
                 {.least = 0, .most = 1, .open = true});
    flags.integer("kv-heads", kv_heads_, "average keys and values to this many heads (0: off)");
    flags.text("data", "FILE", data_,
               "text, or source TAB target for translators, that importance is measured on");
    flags.integer("sequences", sequences_, "number of windows or pairs of --data to use", {.least = 1});
  }

  int run(const CommonOptions& common) override {
    if (out_.empty()) throw UsageError("--out DIR is required; see multihead prune --help");
    if (!overwrites_) check_vacant(out_);
    const bool measured = keep_heads_ < 1 || keep_units_ < 1;
    if (heads_.empty() && !measured && kv_heads_ == 0)
      throw UsageError("nothing to remove: give --heads, --keep-ratio, --keep-units or --kv-heads");
    if (!heads_.empty() && keep_heads_ < 1) throw UsageError("give --heads or --keep-ratio, not both");
    if (!measured) refuse_given("without --keep-ratio or --keep-units", {"data", "sequences"});
    if (measured && data_.empty()) throw UsageError("--data FILE is required to measure importance");
    if (reading([&] { return models::is_seq2seq_folder(folder_); })) {
      if (kv_heads_ > 0) throw UsageError("--kv-heads is for language models");
      return run_translator(common);
    }
    return run_model(common);
  }

 private:
  int run_model(const CommonOptions& common) {
    LoadedModel loaded = load_model_dir(folder_);
    const int64_t before = nn::parameter_count(loaded.model);
    if (kv_heads_ > 0) loaded.model = reading([&] { return models::pool_kv_heads(loaded.model, kv_heads_); });
    const models::LanguageModelConfig c = loaded.model.config();
    if (keep_units_ < 1 && c.block == nn::Block::attention_only) {
      throw UsageError("--keep-units: the model's layers have no feed-forward units");
    }
    std::vector<Part> parts = {{"", "", "self_attn.z", c.num_layers, c.num_heads, c.pruned_heads}};
    const models::Importance importance = measure(loaded, common.quiet);
    models::Pruning pruning;
    decide(parts, importance, c.num_heads / c.num_kv_heads);
    pruning.heads = parts[0].remove;
    if (keep_units_ < 1) pruning.units = fewest(importance_at(importance, parts[0], "mlp_post"), keep_units_);
    loaded.model = reading([&] { return models::prune(loaded.model, pruning); });
    save_model_dir(loaded, folder_, out_);
    if (!common.quiet) note_pooling(folder_);
    const models::LanguageModelConfig& small = loaded.model.config();
    return report(common, parts, before, nn::parameter_count(loaded.model), {c.ffn_dim, small.ffn_dim},
                  models::family_of(small));
  }

  int run_translator(const CommonOptions& common) {
    LoadedTranslator loaded = load_translator_dir(folder_);
    const models::Seq2SeqConfig c = loaded.model.config();
    std::vector<Part> parts = {
        {"encoder", "encoder.", "self_attn.z", c.encoder_layers, c.num_heads, c.encoder_pruned_heads},
        {"decoder", "decoder.", "self_attn.z", c.decoder_layers, c.num_heads, c.decoder_pruned_heads},
        {"cross", "decoder.", "multihead_attn.z", c.decoder_layers, c.num_heads, c.cross_pruned_heads}};
    const models::Importance importance = measure(loaded, common.quiet);
    decide(parts, importance, 1);
    models::Pruning encoder{.heads = parts[0].remove},
        decoder{.heads = parts[1].remove, .cross = parts[2].remove};
    if (keep_units_ < 1) {
      encoder.units = fewest(importance_at(importance, parts[0], "mlp_post"), keep_units_);
      decoder.units = fewest(importance_at(importance, parts[1], "mlp_post"), keep_units_);
    }
    models::Seq2Seq small = reading([&] { return models::prune(loaded.model, encoder, decoder); });
    save_translator_dir(small, loaded.tokenizers, folder_, out_);
    return report(common, parts, nn::parameter_count(loaded.model), nn::parameter_count(small),
                  {c.ffn_dim, small.config().ffn_dim}, models::family_of(small.config()));
  }

  void decide(std::vector<Part>& parts, const models::Importance& importance, int64_t group) const {
    if (!importance.empty()) {
      for (Part& part : parts) {
        part.importance = importance_at(importance, part, part.point);
        for (const auto& row : part.importance) {
          for (const double x : row) check_number(folder_, "the importance of a head", x);
        }
        number_as_before(part);
      }
    }
    if (!heads_.empty()) choose(parts, heads_);
    if (keep_heads_ < 1) choose(parts, keep_heads_, group);
  }

  // The importance of heads over `count` sequences; empty without --data.
  template <class Loss>
  models::Importance measured(int64_t count, bool quiet, Loss loss) const {
    models::Importance importance;
    TextMeter meter(quiet, "sequences");
    for (int64_t i = 0; i < count; ++i) {
      models::add_importance(importance, [&] { return loss(i); });
      meter(i + 1, count);
    }
    return importance;
  }

  models::Importance measure(const LoadedModel& loaded, bool quiet) const {
    if (data_.empty()) return {};
    const models::LanguageModelConfig& c = loaded.model.config();
    const std::vector<int32_t> ids = reading([&] { return loaded.tokenizer.encode(text::read_text(data_)); });
    const auto length = std::min(c.context, static_cast<int64_t>(ids.size()) - 1);
    if (length < 1) throw InputError(concat(data_, ": has ", ids.size(), " tokens, at least 2 are needed"));
    const int64_t all = (std::ssize(ids) - 1) / length, count = std::min(all, sequences_);
    return measured(count, quiet, [&](int64_t i) {
      const int64_t begin = i * all / count * length;
      const train::WindowBatch batch =
          train::gather_windows(std::span<const int32_t>(ids), std::span(&begin, 1), length);
      return loaded.model.loss(batch.tokens, batch.targets);
    });
  }

  models::Importance measure(const LoadedTranslator& loaded, bool quiet) const {
    if (data_.empty()) return {};
    const models::Seq2SeqConfig& c = loaded.model.config();
    std::vector<train::TokenPair> pairs = reading([&] {
      return train::encode_pairs(
          text::read_pairs(data_), loaded.tokenizers.source, loaded.tokenizers.target,
          {.pad = static_cast<int32_t>(c.pad_id), .eos = static_cast<int32_t>(c.eos_id)});
    });
    const size_t all = pairs.size();
    std::erase_if(pairs, [&](const train::TokenPair& pair) { return pair.longest() > c.max_positions; });
    if (pairs.empty()) throw InputError(concat(data_, ": no pair is short enough for the model"));
    if (pairs.size() < all && !quiet)
      fmt::print(stderr, "{}: {} of {} pairs are longer than {} tokens and left out\n", printable(data_),
                 all - pairs.size(), all, c.max_positions);
    const int64_t count = std::min(std::ssize(pairs), sequences_);
    return measured(count, quiet, [&](int64_t i) {
      const train::PairBatch batch = train::make_pair_batch(pairs, {i * std::ssize(pairs) / count}, c);
      return loaded.model.loss(batch.source, batch.input, batch.labels);
    });
  }

  int report(const CommonOptions& common, const std::vector<Part>& parts, int64_t before, int64_t after,
             std::pair<int64_t, int64_t> units, const std::string& family) const {
    int64_t all = 0, left = 0;
    Json removed = Json::array(), importance = Json::object();
    for (const Part& part : parts) {
      all += part.kept(part.before);
      left += part.kept(part.before);
      for (size_t i = 0; i < part.remove.size(); ++i) {
        for (const int64_t head : part.remove[i]) {
          if (!part.before.empty() && std::ranges::count(part.before[i], head) > 0) continue;
          removed.push_back(concat(part.name, part.name.empty() ? "" : ".", i, ".", head));
          --left;
        }
      }
      Json rows = Json::array();
      for (const auto& row : part.importance) rows.push_back(std::vector<Json>(row.begin(), row.end()));
      if (!part.importance.empty()) importance[part.name.empty() ? "self_attn" : part.name] = rows;
    }
    if (common.json) {
      put_json(Json::object({{"out", io::path_to_json(out_)},
                             {"family", family},
                             {"removed", removed},
                             {"heads", std::vector<Json>{all, left}},
                             {"units", std::vector<Json>{units.first, units.second}},
                             {"parameters", std::vector<Json>{before, after}},
                             {"importance", importance}}));
      return kDone;
    }
    for (const Part& part : parts) print_importance(part);
    fmt::print("{}: {} of {} heads, {} of {} feed-forward units, {} of {} parameters ({:.1f} %)\n",
               printable(out_), left, all, units.second, units.first, after, before,
               100 * static_cast<double>(after) / static_cast<double>(before));
    if (family.starts_with("multihead"))
      fmt::print("no family of transformers has such a model: a folder of our own\n");
    return kDone;
  }

  // Each layer's scaled to length 1, as they are compared; removed ones in brackets.
  static void print_importance(const Part& part) {
    if (part.importance.empty()) return;
    fmt::print("importance of heads{}{} (|d loss / d gate|, each layer scaled to length 1; [removed])\n",
               part.name.empty() ? "" : ", ", part.name);
    for (size_t i = 0; i < part.importance.size(); ++i) {
      const std::vector<double>& row = part.importance[i];
      const double length = std::sqrt(std::inner_product(row.begin(), row.end(), row.begin(), 0.0));
      fmt::print("  layer {:<3}", i);
      for (size_t head = 0; head < row.size(); ++head) {
        const bool gone =
            i < part.remove.size() && std::ranges::count(part.remove[i], static_cast<int64_t>(head)) > 0;
        fmt::print(" {}{:.2f}{}", gone ? '[' : ' ', length > 0 ? row[head] / length : 0, gone ? ']' : ' ');
      }
      fmt::print("\n");
    }
  }

  std::string folder_, out_, heads_, data_;
  double keep_heads_ = 1, keep_units_ = 1;
  int64_t kv_heads_ = 0, sequences_ = 64;
  bool overwrites_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_prune() { return std::make_unique<Prune>(); }

}  // namespace multihead::cli
