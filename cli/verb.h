// A verb of the command line: a name, flags described as data, and an action.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/kernels/amx/precision.h"
#include "multihead/train/fields.h"

namespace multihead::cli {

enum ExitCode {
  kDone = 0,
  kFailed = 1,
  kUsage = 2,
  kBadInput = 3,
  kUnsupported = 4,
  kPipeClosed = 141  ///< as a shell reports SIGPIPE
};

/// The command line itself is invalid.
struct UsageError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};
/// An input file cannot be used.
struct InputError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Runs `read`, treating every failure as an input file's.
template <class F>
auto reading(F&& read) -> decltype(read()) {
  try {
    return read();
  } catch (const IoError& error) {
    throw InputError(error.what());
  } catch (const FormatError& error) {
    throw InputError(error.what());
  } catch (const std::invalid_argument& error) {
    throw InputError(error.what());
  }
}

struct Flag {
  std::string name;   ///< without dashes; positionals: "DIR"
  std::string value;  ///< "N", "FILE"; empty: a switch
  std::string help;
  std::string initial;  ///< shown as the default
  std::vector<std::string> choices = {};
  bool positional = false;
  bool required = false;
  bool many = false;         ///< takes several values; a positional, all the rest
  bool repeats = false;      ///< may be given several times, with a value each
  bool takes_empty = false;  ///< "" is a value like others
  bool writes = false;       ///< names a file or folder that the verb writes
  std::function<void(std::string_view)> set;

  /// "--data"; of positionals "DIR".
  std::string shown() const { return (positional ? "" : "--") + name; }
  bool is_path() const;
};

/// The range of a numeric flag; by default not negative.
struct IntegerRange {
  int64_t least = 0;
  int64_t most = std::numeric_limits<int64_t>::max();
};
struct NumberRange {
  double least = 0;
  double most = std::numeric_limits<double>::max();
  bool open = false;  ///< excludes `least` itself
};

class Flags {
 public:
  void text(const char* name, const char* value, std::string& target, const char* help);
  /// A file or folder to write, which must not be one that another flag names.
  void output(const char* name, const char* value, std::string& target, const char* help);
  Flag& integer(const char* name, int64_t& target, const char* help, IntegerRange range = {});
  void number(const char* name, double& target, const char* help, NumberRange range = {});
  void flag(const char* name, bool& target, const char* help);
  void choice(const char* name, std::string& target, std::vector<std::string> names, const char* help);
  Flag& positional(const char* name, std::string& target, const char* help, bool required = true);
  void positionals(const char* name, std::vector<std::string>& target, const char* help);
  /// All the words up to the next flag.
  void texts(const char* name, const char* value, std::vector<std::string>& target, const char* help);
  /// A text each time that it is given.
  void repeated(const char* name, const char* value, std::vector<std::string>& target, const char* help);
  /// A setting of training; its default depends on the preset. `needs_init`: of a kind that only fine-tunes.
  void setting(const train::Field& field, bool needs_init);
  Flag& add(Flag flag) { return list_.emplace_back(std::move(flag)); }
  const std::vector<Flag>& list() const { return list_; }

 private:
  std::vector<Flag> list_;
};

/// Flags whose base is known later: a model folder's defaults, a preset, a resumed run. Those given are set a
/// second time on top of it.
class GivenFlags {
 public:
  /// `declare` adds to the flags it is called with.
  void declare(Flags& flags, const std::function<void(Flags&)>& declare);
  void set_again() const {
    for (const auto& set : given_) set();
  }

 private:
  std::vector<std::function<void()>> given_;
};

struct CommonOptions {
  bool json = false;
  bool quiet = false;
  int64_t threads = 0;
  std::string config;
  kernels::MatmulPrecision precision = kernels::MatmulPrecision::highest;
};

class Verb {
 public:
  /// Command lines with a remark each.
  using Examples = std::vector<std::pair<std::string, std::string>>;

  Verb(std::string name, std::string summary, Examples examples)
      : name(std::move(name)), summary(std::move(summary)), examples(std::move(examples)) {}
  virtual ~Verb() = default;
  virtual void declare(Flags& flags) = 0;
  virtual int run(const CommonOptions& common) = 0;

  const std::string name;  ///< "train lm"
  const std::string summary;
  const Examples examples;  ///< for --help
};

using Verbs = std::vector<std::unique_ptr<Verb>>;
/// All of them.
Verbs make_verbs();

}  // namespace multihead::cli
