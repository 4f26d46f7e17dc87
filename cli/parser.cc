#include "cli/parser.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "cli/suggestion.h"
#include "multihead/core/files.h"
#include "multihead/core/json.h"

namespace multihead::cli {
namespace {

// CLI11 collects texts; the flags convert them, so that every message is ours and no locale matters.
struct Collected {
  std::vector<std::string> values;
  bool seen = false;
};

void add_option(CLI::App& app, const Flag& flag, Collected& collected) {
  if (flag.value.empty()) {
    app.add_flag_callback("--" + flag.name, [&collected] { collected.seen = true; });
    return;
  }
  const std::string name = flag.positional ? flag.name : "--" + flag.name;
  auto store = [&collected](const std::string& value) { collected.values.push_back(value); };
  if (flag.many) {
    app.add_option(name, collected.values)->expected(0, 1 << 20);
  } else {
    app.add_option_function<std::string>(name, store)->required(flag.required);
  }
}

void check_file(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::optional<std::string> path;
    if (arguments[i] == "--config" && i + 1 < arguments.size()) path = arguments[i + 1];
    if (arguments[i].starts_with("--config=")) path = arguments[i].substr(9);
    if (!path) continue;
    try {
      read_file(*path, 1 << 20);  // CLI11 would wait for a pipe, and read a disk to its end
    } catch (const IoError& error) {
      throw InputError(error.what());
    }
  }
}

// CLI11 lists what it cannot place all together; the first wrong name says more.
void check_names(const std::string& verb, const Flags& flags, const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--") return;
    if (!argument.starts_with("--")) continue;
    const std::string name = argument.substr(2, argument.find('=') - 2);
    const auto is_it = [&](const Flag& flag) { return !flag.positional && flag.name == name; };
    if (name == "config" || std::any_of(flags.list().begin(), flags.list().end(), is_it)) continue;
    std::vector<std::string> known = {"--config"};
    for (const Flag& flag : flags.list()) {
      if (!flag.positional) known.push_back("--" + flag.name);
    }
    throw UsageError(concat("unknown flag ", quote("--" + name), suggestion("--" + name, known),
                            "; see multihead ", verb, " --help"));
  }
}

// CLI11 repeats what it read, however long it is and whatever it holds.
std::string first_line(std::string text) {
  constexpr size_t kMost = 200;
  if (text.size() > kMost) text.replace(kMost, std::string::npos, "...");
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c > '~'; }, ' ');
  return text;
}

std::string flag_text(const Flag& flag) {
  if (flag.positional) return flag.many ? flag.name + " …" : flag.name;
  return "--" + flag.name + (flag.value.empty() ? "" : " " + flag.value);
}

std::string describe(const Flag& flag) {
  std::string text = flag.help;
  if (!flag.choices.empty()) {
    text += ": ";
    for (size_t i = 0; i < flag.choices.size(); ++i) text += (i > 0 ? ", " : "") + flag.choices[i];
  }
  if (!flag.initial.empty()) text += " [" + flag.initial + "]";
  return text;
}

void append_flags(std::string& out, const Flags& flags, bool positional) {
  for (const Flag& flag : flags.list()) {
    if (flag.positional == positional) out += fmt::format("  {:<28} {}\n", flag_text(flag), describe(flag));
  }
}

}  // namespace

Flags common_flags(CommonOptions& common) {
  Flags flags;
  flags.flag("json", common.json, "results as JSON");
  flags.flag("quiet", common.quiet, "no progress on stderr");
  flags.add({.name = "threads",
             .value = "N",
             .help = "threads to use",
             .initial = "all processors",
             .set = [&common](std::string_view v) {
               common.threads = train::parse_integer("--threads", v);
               if (common.threads < 1 || common.threads > 1024) {
                 throw UsageError(concat("--threads must be in [1, 1024], got ", common.threads));
               }
             }});
  flags.add({.name = "float32-matmul-precision",
             .value = "WORD",
             .help = "highest, high, medium or highest_tiles: f32 matrix products on CPUs with AMX tiles",
             .initial = "highest",
             .set = [&common](std::string_view v) { common.precision = kernels::parse_precision(v); }});
  return flags;
}

ParsedLine parse(const std::string& verb, const Flags& own, const std::vector<std::string>& arguments) {
  ParsedLine line;
  Flags flags = common_flags(line.common);
  for (const Flag& flag : own.list()) flags.add(flag);
  CLI::App app;
  app.set_help_flag();
  app.allow_config_extras(CLI::config_extras_mode::error);
  bool help = false;
  app.add_flag("-h,--help", help)->configurable(false);
  app.set_config("--config");
  std::vector<std::unique_ptr<Collected>> collected;
  for (const Flag& flag : flags.list()) add_option(app, flag, *collected.emplace_back(new Collected));
  if (std::any_of(arguments.begin(), arguments.end(), [](auto& a) { return a == "--help" || a == "-h"; })) {
    line.wants_help = true;
    return line;
  }
  check_names(verb, flags, arguments);
  check_file(arguments);
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::FileError& error) {
    throw InputError(first_line(error.what()));
  } catch (const CLI::ConfigError& error) {
    throw UsageError(concat("--config: unknown or wrong setting: ", first_line(error.what()),
                            "; see multihead ", verb, " --help"));
  } catch (const CLI::ParseError& error) {
    throw UsageError(concat(first_line(error.what()), "; see multihead ", verb, " --help"));
  }
  for (size_t i = 0; i < flags.list().size(); ++i) {
    const Flag& flag = flags.list()[i];
    if (collected[i]->seen) flag.set("true");
    for (const std::string& value : collected[i]->values) flag.set(value);
  }
  return line;
}

std::string help_text(const Verb& verb, const Flags& flags) {
  std::string out = fmt::format("{}\n\n  multihead {}", verb.summary(), verb.name());
  for (const Flag& flag : flags.list()) {
    if (flag.positional) out += flag.required ? " " + flag_text(flag) : " [" + flag_text(flag) + "]";
    if (!flag.positional && flag.required) out += " " + flag_text(flag);
  }
  out += " [flags]\n\n";
  append_flags(out, flags, true);
  append_flags(out, flags, false);
  CommonOptions common;
  append_flags(out, common_flags(common), false);
  out += fmt::format("  {:<28} {}\n", "--config FILE",
                     "flags from a TOML or INI file (lr = 0.001); the command line wins");
  out += fmt::format("  {:<28} {}\n", "-h, --help", "this text");
  out += "\nExamples\n";
  for (const auto& [line, remark] : verb.examples()) out += fmt::format("  {}\n      {}\n", line, remark);
  return out;
}

std::string help_text(const Verbs& verbs, const std::string& group) {
  std::string out =
      group.empty() ? "multihead: Transformers on a CPU, trained and run\n\n  multihead VERB [arguments]\n\n"
                    : "";
  for (const auto& verb : verbs) {
    if (!group.empty() && !verb->name().starts_with(group + " ")) continue;
    out += fmt::format("  {:<20} {}\n", verb->name(), verb->summary());
  }
  out += "\nmultihead VERB --help shows flags and examples; multihead --version the version.\n";
  return out;
}

}  // namespace multihead::cli
