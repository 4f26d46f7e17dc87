#include "cli/parser.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "cli/config_file.h"
#include "multihead/core/files.h"
#include "multihead/core/text/near_names.h"
#include "multihead/core/text/utf8.h"
#include "multihead/io/file_set.h"

namespace multihead::cli {
namespace {

// Are all words of `typed` (max-tokens) among those of `name` (max-new-tokens), in order?
bool holds_words(std::string_view name, std::string_view typed) {
  size_t from = 0;
  while (!typed.empty()) {
    const size_t end = std::min(typed.find('-'), typed.size());
    const size_t found = name.find(typed.substr(0, end), from);
    if (found == std::string_view::npos) return false;
    from = found + end;
    typed.remove_prefix(std::min(end + 1, typed.size()));
  }
  return true;
}

namespace fs = std::filesystem;

// Is `output` the file or folder `input`, or a file of that folder?
bool is_at(const fs::path& output, const fs::path& input) {
  std::error_code absent;
  if (output == input || fs::equivalent(output, input, absent)) return output != "-";
  constexpr auto kSkip = fs::directory_options::skip_permission_denied;
  if (!fs::is_regular_file(output, absent) || !fs::is_directory(input, absent)) return false;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(input, kSkip, absent)) {
    if (io::is_read_from_folders(entry.path().filename().string()) &&
        fs::equivalent(output, entry.path(), absent))
      return true;
  }
  return false;
}

// The values given on the command line and in --config, as text, by the flags' places in their list.
class Given {
 public:
  Given(const std::string& verb, const Flags& flags)
      : verb_(verb), list_(flags.list()), values_(flags.list().size()) {}

  void read_line(const std::vector<std::string>& words);
  /// Sets what the command line does not. Lines of TOML or INI: name = value, or the name of a switch alone.
  void read_config();
  void set_flags() const;
  /// Refuses an output that lies where an input does.
  void check_outputs() const;
  std::vector<std::string> names() const;

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw UsageError(concat(why, "; see multihead ", verb_, " --help"));
  }
  // list_.size() if there is no such flag.
  size_t find(std::string_view name) const {
    const auto named = [&](const Flag& flag) { return !flag.positional && flag.name == name; };
    return static_cast<size_t>(std::find_if(list_.begin(), list_.end(), named) - list_.begin());
  }
  size_t known(const std::string& dashed) const;
  void put_positional(const std::string& word);

  const std::string& verb_;
  const std::vector<Flag>& list_;
  std::vector<std::vector<std::string>> values_;
};

size_t Given::known(const std::string& dashed) const {
  if (const size_t place = find(dashed.substr(2)); place < list_.size()) return place;
  std::vector<std::string> names;
  for (const Flag& flag : list_) {
    if (!flag.positional) names.push_back("--" + flag.name);
  }
  const std::string now = train::current_name(dashed.substr(2));
  if (find(now) < list_.size()) refuse(concat(quote(dashed), " is now called --", now));
  refuse(concat("unknown flag ", quote(dashed), suggestion(dashed, names)));
}

void Given::put_positional(const std::string& word) {
  for (size_t i = 0; i < list_.size(); ++i) {
    if (list_[i].positional && (list_[i].many || values_[i].empty())) {
      values_[i].push_back(word);
      return;
    }
  }
  refuse("unexpected argument " + quote(word));
}

void Given::read_line(const std::vector<std::string>& words) {
  const auto end = words.end();
  bool only_positionals = false;
  for (auto word = words.begin(); word != end; ++word) {
    if (only_positionals || !word->starts_with("--")) {
      put_positional(*word);
      continue;
    }
    if ((only_positionals = *word == "--")) continue;
    const size_t equals = word->find('='), place = known(word->substr(0, equals));
    std::vector<std::string>& values = values_[place];
    if (equals != std::string::npos) {
      values.push_back(word->substr(equals + 1));
    } else if (list_[place].value.empty()) {
      values.emplace_back("true");
    } else if (word + 1 == end) {
      refuse(concat(*word, " needs a value, ", list_[place].value));
    } else {
      do values.push_back(*++word);
      while (list_[place].many && word + 1 != end && !word[1].starts_with("--"));
    }
  }
}

void Given::read_config() {
  const std::vector<std::string>& paths = values_[find("config")];
  if (paths.empty() || paths.back().empty()) return;
  const std::vector<std::vector<std::string>> from_line = values_;
  std::string text;
  try {
    text = read_file(paths.back(), 1 << 20);
  } catch (const IoError& error) {
    throw InputError(error.what());
  }
  for (Setting& setting : parse_settings(text)) {
    const size_t place = find(setting.name);
    if (setting.name == "config") refuse_setting(setting.line, setting.name, "it cannot name another file");
    if (place == list_.size())
      refuse_setting(setting.line, setting.name, concat("no such flag; see multihead ", verb_, " --help"));
    if (from_line[place].empty()) values_[place] = std::move(setting.values);
  }
}

void Given::set_flags() const {
  for (size_t i = 0; i < list_.size(); ++i) {
    const std::string name = list_[i].shown();
    if (list_[i].required && values_[i].empty()) refuse(name + " is required");
    if (!list_[i].many && !list_[i].repeats && values_[i].size() > 1)
      refuse(concat(
          name, " is given ", values_[i].size(), " times",
          list_[i].positional ? "" : "; it takes one value (those of a --config file are overridden)"));
    for (const std::string& value : values_[i]) {
      // As of an unset variable of the shell: the flag must not count as absent.
      if (value.empty() && !list_[i].value.empty() && !list_[i].takes_empty)
        refuse(concat(name, " must not be empty, expected ", list_[i].value));
      list_[i].set(value);
    }
  }
}

void Given::check_outputs() const {
  for (size_t to = 0; to < list_.size(); ++to) {
    for (size_t from = 0; list_[to].writes && from < list_.size(); ++from) {
      if (from == to || !list_[from].is_path()) continue;
      for (const std::string& output : values_[to]) {
        const auto holds = [&](const std::string& input) { return is_at(output, input); };
        if (std::ranges::any_of(values_[from], holds))
          throw UsageError(concat(list_[to].shown(), " would replace ", quote(output), ", which ",
                                  list_[from].shown(), " names; choose another output"));
      }
    }
  }
}

std::vector<std::string> Given::names() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < list_.size(); ++i) {
    if (!list_[i].positional && !values_[i].empty()) names.push_back(list_[i].name);
  }
  return names;
}

std::vector<std::string>& all_given() {
  static std::vector<std::string> names;
  return names;
}

std::string flag_text(const Flag& flag) {
  if (flag.positional) return flag.many ? flag.name + " …" : flag.name;
  return "--" + flag.name + (flag.value.empty() ? "" : " " + flag.value);
}

std::string describe(const Flag& flag) {
  std::string text = flag.help;
  if (!flag.choices.empty()) text += fmt::format(": {}", fmt::join(flag.choices, ", "));
  if (!flag.initial.empty()) text += " [" + flag.initial + "]";
  return text;
}

void append_flags(std::string& out, const Flags& flags, bool positional) {
  for (const Flag& flag : flags.list()) {
    if (flag.positional == positional) out += fmt::format("  {:<28} {}\n", flag_text(flag), describe(flag));
  }
}

}  // namespace

std::string suggestion(std::string_view typed, const std::vector<std::string>& names) {
  constexpr size_t kLongest = 64;  // bounds the table
  if (typed.size() < 2 || typed.size() > kLongest) return "";
  const std::string* best = nullptr;
  size_t fewest = 1 + std::max<size_t>(2, typed.size() / 3);
  for (const std::string& name : names) {
    const size_t distance = edit_distance(typed, name);
    if (distance < fewest) {
      fewest = distance;
      best = &name;
    }
  }
  for (size_t i = 0; best == nullptr && i < names.size(); ++i) {
    if (holds_words(names[i], typed)) best = &names[i];
  }
  return best == nullptr ? "" : " (did you mean " + quote(*best) + "?)";
}

const std::vector<std::string>& given_flags() { return all_given(); }

void use_only(const char* way, std::initializer_list<std::string_view> used) {
  CommonOptions common;
  const Flags shared = common_flags(common);
  for (const std::string& flag : given_flags()) {
    const bool is_common = std::ranges::find(shared.list(), flag, &Flag::name) != shared.list().end();
    if (is_common || std::ranges::find(used, flag) != used.end()) continue;
    throw UsageError(concat("--", flag, " has no effect on ", way));
  }
}

void refuse_given(const std::string& when, std::initializer_list<std::string_view> useless) {
  for (const std::string& flag : given_flags()) {
    if (std::ranges::find(useless, flag) != useless.end())
      throw UsageError(concat("--", flag, " has no effect ", when));
  }
}

Flags common_flags(CommonOptions& common) {
  Flags flags;
  flags.flag("json", common.json, "results as JSON");
  flags.flag("quiet", common.quiet, "no progress on stderr");
  flags.integer("threads", common.threads, "threads to use", {.least = 1, .most = 1024}).initial =
      "all processors";
  flags.add({.name = "float32-matmul-precision",
             .value = "WORD",
             .help = "highest, high, medium or highest_tiles: f32 matrix products on CPUs with AMX tiles",
             .initial = "highest",
             .set = [&common](std::string_view v) { common.precision = kernels::parse_precision(v); }});
  flags.text("config", "FILE", common.config,
             "read flags from a TOML or INI file (lr = 0.001); the command line takes precedence");
  return flags;
}

ParsedLine parse(const std::string& verb, const Flags& own, const std::vector<std::string>& arguments) {
  ParsedLine line;
  line.wants_help = std::any_of(arguments.begin(), arguments.end(),
                                [](auto& word) { return word == "--help" || word == "-h"; });
  if (line.wants_help) return line;
  Flags flags = common_flags(line.common);
  for (const Flag& flag : own.list()) flags.add(flag);
  Given given(verb, flags);
  given.read_line(arguments);
  given.read_config();
  given.set_flags();
  given.check_outputs();
  all_given() = given.names();
  return line;
}

std::string help_text(const Verb& verb, const Flags& flags) {
  std::string out = fmt::format("{}\n\n  multihead {}", verb.summary, verb.name);
  for (const Flag& flag : flags.list()) {
    if (flag.positional) out += flag.required ? " " + flag_text(flag) : " [" + flag_text(flag) + "]";
    if (!flag.positional && flag.required) out += " " + flag_text(flag);
  }
  out += " [flags]\n\n";
  append_flags(out, flags, true);
  append_flags(out, flags, false);
  CommonOptions common;
  append_flags(out, common_flags(common), false);
  out += fmt::format("  {:<28} {}\n", "-h, --help", "show this help");
  out += "\nExamples\n";
  for (const auto& [line, remark] : verb.examples) out += fmt::format("  {}\n      {}\n", line, remark);
  return out;
}

std::string help_text(const Verbs& verbs, const std::string& group) {
  std::string out = group.empty()
                        ? "multihead: train and run Transformers on a CPU\n\n  multihead VERB [arguments]\n\n"
                        : "";
  for (const auto& verb : verbs) {
    if (!group.empty() && !verb->name.starts_with(group + " ")) continue;
    out += fmt::format("  {:<20} {}\n", verb->name, verb->summary);
  }
  out += "\nmultihead VERB --help shows flags and examples; multihead --version shows the version.\n";
  return out;
}

}  // namespace multihead::cli
