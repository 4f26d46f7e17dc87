// Models as Hugging Face directories: config.json, model.safetensors (beside tokenizer.json).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "multihead/core/text/json.h"
#include "multihead/models/encoder.h"
#include "multihead/models/image_encoder.h"
#include "multihead/models/language_model.h"
#include "multihead/models/seq2seq.h"
#include "multihead/models/weight_map.h"

namespace multihead::models {

/// "model_type" of the first family (families.cc) that can express this configuration, such as `gpt2`,
/// `llama` or `marian`: the folder loads in transformers. `multihead` and `multihead_seq2seq` are everything
/// that none of them can express, under our own names.
const std::string& family_of(const LanguageModelConfig& config);
const std::string& family_of(const Seq2SeqConfig& config);
const std::string& family_of(const EncoderConfig& config);
const std::string& family_of(const ImageEncoderConfig& config);

/// config.json. What the family has no field for goes under "multihead".
Json config_to_json(const LanguageModelConfig& config);
Json config_to_json(const Seq2SeqConfig& config);
Json config_to_json(const EncoderConfig& config);
Json config_to_json(const ImageEncoderConfig& config);
/// The same under our own names, with the fields that other families take from the weights' file, such as `pooler`.
Json whole_config_to_json(const LanguageModelConfig& config);
Json whole_config_to_json(const Seq2SeqConfig& config);
Json whole_config_to_json(const EncoderConfig& config);
Json whole_config_to_json(const ImageEncoderConfig& config);
/// Throws FormatError naming file and field; also for a field that is not known.
LanguageModelConfig config_from_json(const Json& json, const std::string& where);
Seq2SeqConfig seq2seq_config_from_json(const Json& json, const std::string& where);
EncoderConfig encoder_config_from_json(const Json& json, const std::string& where);
ImageEncoderConfig image_encoder_config_from_json(const Json& json, const std::string& where);

/// The same encoder with another head, as its family has it; `labels` of one that reads labels.
EncoderConfig with_head(const EncoderConfig& config, EncoderHead head,
                        const std::vector<std::string>& labels = {});

/// Whether the folder's config.json describes an encoder-decoder model. Throws IoError, FormatError.
bool is_seq2seq_folder(const std::string& folder);
/// Whether it describes an encoder of text.
bool is_encoder_folder(const std::string& folder);
/// Whether it describes an encoder of images.
bool is_image_folder(const std::string& folder);
/// The head of the encoder that load_encoder() reads. Throws IoError, FormatError.
EncoderHead encoder_head(const std::string& folder);
/// Whether load_encoder() reads it: an encoder's, or a T5 whose decoder it leaves out.
bool has_encoder(const std::string& folder);

WeightMap weight_map(LanguageModel& model);
WeightMap weight_map(Seq2Seq& model);
WeightMap weight_map(Encoder& model);
WeightMap weight_map(ImageEncoder& model);

/// Writes config.json and model.safetensors, both or neither; creates the folder if needed. Throws ValueError
/// if existing files were not written by this library or were changed since (io/file_set.h), IoError. Over a
/// model of the same config.json, weights are replaced and the tokenizer stays. Another model is refused,
/// unless `overwrite`: then its tokenizer goes with it.
void save_language_model(LanguageModel& model, const std::string& folder, bool overwrite = false);
void save_seq2seq(Seq2Seq& model, const std::string& folder, bool overwrite = false);
void save_encoder(Encoder& model, const std::string& folder, bool overwrite = false);
void save_image_encoder(ImageEncoder& model, const std::string& folder, bool overwrite = false);
/// The weights as in model.safetensors, for checkpoints.
io::TensorMap language_model_tensors(LanguageModel& model);
io::TensorMap seq2seq_tensors(Seq2Seq& model);
io::TensorMap encoder_tensors(Encoder& model);

/// A folder may hold an adapter (models/files/adapter.h) alone: it is added to the model that the folder names. A
/// language model may be a GGUF file (models/files/gguf.h) instead of a folder. Sizes are checked against the
/// file's header before allocation. `weights`: packed by LanguageModel::pack_weights, f32 of a quantised GGUF
/// file: decoded; none: as they are stored. `packed`: for inference, f32 weights are packed too. What is
/// packed is packed while it is read, without f32 weights beside it. Throws IoError, FormatError, ValueError
/// (a folder packed otherwise).
LanguageModel load_language_model(const std::string& folder, std::optional<nn::WeightDtype> weights = {},
                                  bool packed = false);
/// load_language_model() without the output layer, whether the folder has one or not: for embeddings.
LanguageModel load_decoder(const std::string& folder, std::optional<nn::WeightDtype> weights = {},
                           bool packed = false);
Seq2Seq load_seq2seq(const std::string& folder);
/// With the head that "architectures" names; a file's other heads are left out. `weights` and `packed` as of
/// load_language_model(). `task`: with this one of the folder's adapters (TaskAdapters) merged; "": without any.
/// Throws ValueError (a task without an adapter), too.
Encoder load_encoder(const std::string& folder, std::optional<nn::WeightDtype> weights = {},
                     bool packed = false, const std::string& task = "");
ImageEncoder load_image_encoder(const std::string& folder);

/// Fills a model's weights from a model.safetensors or its folder. Throws IoError, FormatError; then nothing
/// has changed.
void load_weights(Seq2Seq& model, const std::string& path);
void load_weights(Encoder& model, const std::string& path);

}  // namespace multihead::models
