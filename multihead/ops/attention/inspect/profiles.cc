#include "multihead/ops/attention/inspect/profiles.h"

#include <array>
#include <cmath>
#include <locale>
#include <sstream>

#include "multihead/core/error.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/ops/attention/masks/check-inl.h"

namespace multihead {
namespace {

constexpr std::array<std::pair<Profile, std::string_view>, 7> kNames = {{{Profile::labml, "labml"},
                                                                         {Profile::blog, "blog"},
                                                                         {Profile::lecture, "lecture"},
                                                                         {Profile::d2l, "d2l"},
                                                                         {Profile::torch_mha, "torch_mha"},
                                                                         {Profile::torch_sdpa, "torch_sdpa"},
                                                                         {Profile::onnx, "onnx"}}};

AttentionProfile labml() {
  AttentionProfile p;
  p.source = "labml.ai annotated transformer, MultiHeadAttention";
  p.options.empty_row = EmptyRow::nan;
  p.mask_polarity = "[Tq or 1, Tk, B or 1], non-zero = may attend; the caller builds causal masks";
  p.has_capture = true;
  p.capture_stage = CaptureStage::after_dropout;
  p.dropout_p = 0.1f;
  p.differences = {"axes are [T, B, E]; weights are stored as [Tq, Tk, B, H], after dropout",
                   "its bias flag governs query and key; value and output always have a bias",
                   "a query without keys gives NaN and poisons the batch"};
  return p;
}

AttentionProfile blog(int64_t embed_dim) {
  MH_CHECK(embed_dim > 0, ValueError, "attention_profile: blog needs embed_dim > 0 for its scale, got ",
           embed_dim);
  AttentionProfile p;
  p.source = "a blog's self-attention from scratch";
  p.options.scale = 1 / std::sqrt(static_cast<double>(embed_dim));
  p.mask_polarity = "no masks";
  p.differences = {"scale is 1/sqrt(embed_dim), not 1/sqrt(head_dim): softer by sqrt(num_heads)",
                   "self-attention only, no mask, no dropout, no weights"};
  return p;
}

AttentionProfile lecture() {
  AttentionProfile p;
  p.source = "lecture notes on Transformers (valid lengths, lazy projections)";
  p.options.empty_row = EmptyRow::uniform;
  p.mask_polarity = "valid_lens [B] or [B, Tq]: keys before the length may attend; causal = lengths 1..Tq";
  p.has_capture = true;
  p.dropout_p = 0.1f;
  p.bias = {false, false, false, false};
  p.differences = {
      "excluded scores become -1e6, so a length of 0 gives uniform weights over all keys, padding too",
      "rows with a valid key agree exactly unless their scores are below -1e6 + 104",
      "its masking writes into the caller's scores; ours never does"};
  return p;
}

AttentionProfile d2l() {
  AttentionProfile p = lecture();
  p.source = "Dive into Deep Learning, multi-head attention notebook";
  p.dropout_p = 0;
  p.bias = {true, true, true, true};
  p.differences.emplace_back(
      "the notebook's second class replaces the first: biases on, all input sizes equal");
  return p;
}

AttentionProfile torch_mha() {
  AttentionProfile p;
  p.source = "torch.nn.MultiheadAttention";
  p.options.empty_row = EmptyRow::nan;
  p.mask_polarity =
      "bool True = may NOT attend (attn_mask and key_padding_mask); float is added to the scores";
  p.has_capture = true;
  p.capture_stage = CaptureStage::after_dropout;
  p.averages_heads = true;
  p.differences = {"need_weights (the default) averages the heads after dropout, so rows do not sum to 1",
                   "a query without keys gives NaN with need_weights and 0 without",
                   "is_causal is only a hint and needs attn_mask; axes are [T, B, E] unless batch_first"};
  return p;
}

AttentionProfile torch_sdpa() {
  AttentionProfile p;
  p.source = "torch.nn.functional.scaled_dot_product_attention";
  p.mask_polarity = "bool True = may attend; float is added to the scores; not together with is_causal";
  p.differences = {"is_causal aligns at the start, which hides a cache from its newest query",
                   "dropout acts whenever dropout_p > 0, in evaluation too",
                   "NaN under a False mask spreads"};
  return p;
}

AttentionProfile onnx() {
  AttentionProfile p;
  p.source = "ONNX Attention, opset 23 and later (release 1.22)";
  p.options.empty_row = EmptyRow::nan;
  p.mask_polarity = "bool True = may attend; float is added; rank 3 is [H, Tq, Tk]";
  p.has_capture = true;
  p.differences = {
      "is_causal aligns at the start plus past_sequence_length; the development version aligns at the end",
      "a query without keys gives NaN up to 1.22 and 0 afterwards",
      "sqrt(scale) multiplies query and key, which rounds differently and rejects negative scales",
      "releases before 1.22 apply softcap after the mask; before 1.20 grouped heads are tiled, not "
      "interleaved"};
  return p;
}

// Axes of [B, H, Tq, Tk] that a system does not broadcast. Their sizes are known where the mask meets its
// scores.
constexpr unsigned kBatch = 1, kQueries = 4, kKeys = 8;

Shape shape_of(const Tensor& mask) { return mask.defined() ? mask.shape() : Shape(); }

const char* stage_text(CaptureStage stage) {
  switch (stage) {
    case CaptureStage::scores:
      return "scores";
    case CaptureStage::after_dropout:
      return "after dropout";
    case CaptureStage::probabilities:
      break;
  }
  return "before dropout";
}

}  // namespace

AttentionProfile attention_profile(Profile profile, int64_t embed_dim) {
  const auto make = [&] {
    switch (profile) {
      case Profile::labml:
        return labml();
      case Profile::blog:
        return blog(embed_dim);
      case Profile::lecture:
        return lecture();
      case Profile::d2l:
        return d2l();
      case Profile::torch_mha:
        return torch_mha();
      case Profile::onnx:
        return onnx();
      case Profile::torch_sdpa:
        break;
    }
    return torch_sdpa();
  };
  AttentionProfile p = make();
  p.profile = profile;
  p.name = profile_name(profile);
  return p;
}

std::string_view profile_name(Profile profile) {
  for (const auto& [value, name] : kNames) {
    if (value == profile) return name;
  }
  return "?";
}

Profile parse_profile(std::string_view name) {
  Enumeration known;
  for (const auto& [value, text] : kNames) {
    if (text == name) return value;
    known.add(text);
  }
  throw ValueError(concat("profile: expected one of ", known, "; got \"", name, "\""));
}

std::string AttentionProfile::to_string() const {
  const char* rules[] = {"zero", "uniform", "NaN", "error"};
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << name << ": " << source << "\n  mask       " << mask_polarity << "\n  causal     aligned at the "
      << (causal_align == Align::start ? "start" : "end") << "\n  empty row  "
      << rules[static_cast<int>(options.empty_row)] << "\n  scale      ";
  if (options.scale) {
    out << *options.scale << "\n";
  } else {
    out << "1/sqrt(head_dim)\n";
  }
  out << "  weights    " << (has_capture ? stage_text(capture_stage) : "not exposed")
      << (averages_heads ? ", mean of the heads" : "") << "\n  dropout    " << dropout_p
      << "\n  biases     query " << bias.query << ", key " << bias.key << ", value " << bias.value
      << ", output " << bias.out << "\n";
  for (const std::string& difference : differences) out << "  differs    " << difference << "\n";
  return std::move(out).str();
}

Mask from_labml_mask(const Tensor& mask) {
  MH_CHECK(mask.defined() && mask.rank() == 3, ShapeError,
           "from_labml_mask: mask must be [Tq or 1, Tk, B or 1], got ", shape_of(mask));
  const Tensor flags = mask.to(Dtype::boolean);
  const Shape &n = flags.shape(), &s = flags.strides();
  return detail::flag_mask(flags.as_strided({n[2], 1, n[0], n[1]}, {s[2], 0, s[0], s[1]}), true, kKeys);
}

Mask from_torch_mha_mask(const Tensor& attn_mask) {
  MH_CHECK(attn_mask.defined() && attn_mask.rank() == 2, ShapeError,
           "from_torch_mha_mask: attn_mask must be [Tq, Tk], got ", shape_of(attn_mask),
           "; one for every head, [B * H, Tq, Tk], is drop(reshape(mask, {B, H, Tq, Tk}))");
  return detail::flag_mask(attn_mask, false, kQueries | kKeys);
}

Mask from_torch_key_padding_mask(const Tensor& key_padding_mask) {
  const Tensor& mask = key_padding_mask;
  MH_CHECK(mask.defined() && mask.rank() == 2, ShapeError,
           "from_torch_key_padding_mask: key_padding_mask must be [B, Tk], got ", shape_of(mask));
  const Shape &n = mask.shape(), &s = mask.strides();
  return detail::flag_mask(mask.as_strided({n[0], 1, 1, n[1]}, {s[0], 0, 0, s[1]}), false, kBatch | kKeys);
}

Mask from_torch_sdpa_mask(const Tensor& attn_mask) { return keep(attn_mask); }

}  // namespace multihead
