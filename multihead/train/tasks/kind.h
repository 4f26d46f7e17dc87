// The kinds of training: what the command line and Python know of each.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "multihead/train/run.h"

namespace multihead::train {

/// A run of any kind, its settings by name.
class AnyRun {
 public:
  virtual ~AnyRun() = default;
  virtual RunRequest& request() = 0;
  /// References into the run.
  virtual std::vector<Field> settings() = 0;
  virtual void set_preset(const std::string& name) = 0;
  /// Takes over the model of request().init: its settings. Throws IoError, FormatError.
  virtual void start_from_init() = 0;
  /// All that there is to say of the model's layers (models::whole_config_to_json), for the other ranks' set_model().
  virtual Json model() const = 0;
  virtual void set_model(const Json& config, const std::string& where) = 0;
  /// Throws ValueError naming the first invalid setting.
  virtual void check_settings() const = 0;
  /// Trains; returns what summary.json holds.
  virtual Json train() const = 0;
};

struct Kind {
  const char* name;                                           ///< "classifier": multihead train classifier
  const char* about;                                          ///< one line of --help, as the following
  std::vector<std::pair<std::string, std::string>> examples;  ///< command lines with a remark each
  const char* tag;                                            ///< of such models on hubs, for their search
  const char* unit;                                           ///< a loss is in nats per …
  const char* data;                                           ///< training data
  const char* valid = nullptr;            ///< validation data; null: the kind takes no file of it
  bool has_columns = false;               ///< the data are tables, in one of text::TableFormat
  bool has_folders = false;               ///< the data are folders
  const char* tokenizer = nullptr;        ///< a tokenizer of its own; null: it takes that of RunRequest::init
  std::vector<std::string> presets = {};  ///< base settings; empty: it only fine-tunes, and needs init
  std::unique_ptr<AnyRun> (*make)();
};

/// In the order of --help.
std::span<const Kind* const> kinds();
/// Throws ValueError unless there is a kind of that name.
const Kind& kind_of(const std::string& name);

/// Throws ValueError if the request lacks what the kind needs or has what it does not take.
void check_request(const RunRequest& request, const Kind& kind);
/// Whether a setting of this name, with hyphens, was given.
bool is_given(const RunRequest& request, std::string_view name);
/// Throws ValueError for a setting that was given, has another value than by default, and changes nothing because of
/// the others. `defaults`: of the same kind, in the same order.
void refuse_unused(const RunRequest& request, std::span<const Field> settings,
                   std::span<const Field> defaults);

}  // namespace multihead::train
