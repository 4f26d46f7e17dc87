// multihead completion: shell completion of verbs, flags and their values.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>

#include "cli/parser.h"

namespace multihead::cli {
namespace {

// Every verb with its flags, shared ones included.
template <class F>
void for_each_verb(F&& f) {
  for (const auto& verb : make_verbs()) {
    CommonOptions common;
    Flags flags = common_flags(common);
    verb->declare(flags);
    flags.add({.name = "help", .value = {}, .help = "flags and examples", .initial = {}, .set = {}});
    f(*verb, flags);
  }
}

constexpr const char* kShells = "bash zsh fish";

std::string first_words(const std::string& prefix) {
  std::vector<std::string> words;
  for (const auto& verb : make_verbs()) {
    const std::string& name = verb->name;
    if (!prefix.empty() && !name.starts_with(prefix + " ")) continue;
    const std::string word = prefix.empty() ? name.substr(0, name.find(' ')) : name.substr(prefix.size() + 1);
    if (words.empty() || words.back() != word) words.push_back(word);
  }
  return fmt::to_string(fmt::join(words, " "));
}

std::string bash() {
  std::string cases, values = fmt::format("    \"completion:completion\") words=\"{}\" ;;\n", kShells);
  for_each_verb([&](const Verb& verb, const Flags& flags) {
    std::string names;
    for (const Flag& flag : flags.list()) {
      if (flag.positional) continue;
      names += " --" + flag.name;
      if (!flag.choices.empty()) {
        values += fmt::format("    \"{}:--{}\") words=\"{}\" ;;\n", verb.name, flag.name,
                              fmt::join(flag.choices, " "));
      } else if (!flag.value.empty() && !flag.is_path()) {
        values += fmt::format("    \"{}:--{}\") return ;;\n", verb.name, flag.name);
      }
    }
    cases += fmt::format("    \"{}\") words=\"{}\" ;;\n", verb.name, names.substr(1));
  });
  std::string seconds;
  for (const char* group : {"train", "tokenizer", "bench"}) {
    seconds += fmt::format("    {}) words=\"{}\" ;;\n", group, first_words(group));
  }
  return fmt::format(R"(# bash completion for multihead; load it with: source <(multihead completion bash)
_multihead() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} verb=${{COMP_WORDS[1]}} words=
  COMPREPLY=()
  if [[ $COMP_CWORD -eq 1 ]]; then
    COMPREPLY=($(compgen -W "{0} --help --version" -- "$current"))
    return
  fi
  case $verb in train|tokenizer|bench)
    if [[ $COMP_CWORD -eq 2 ]]; then
      case $verb in
{1}      esac
      COMPREPLY=($(compgen -W "$words" -- "$current"))
      return
    fi
    verb="$verb ${{COMP_WORDS[2]}}" ;;
  esac
  case "$verb:$previous" in
{2}  esac
  if [[ -n $words ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  elif [[ $current == -* ]]; then
    case $verb in
{3}    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  else
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}}
complete -o filenames -F _multihead multihead
)",
                     first_words(""), seconds, values, cases);
}

std::string zsh() {
  return "#compdef multihead\n# zsh completion for multihead; load it with: source <(multihead completion "
         "zsh)\n"
         "autoload -U +X bashcompinit && bashcompinit\n" +
         bash() +
         // Loaded from a folder of completions, this is the function that was called: the first time it must answer, too.
         "[[ ${funcstack[1]} != _multihead ]] || _bash_complete -o filenames -F _multihead\n";
}

std::string fish_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return out + "'";
}

std::string fish() {
  std::string out = "# fish completion for multihead; load it with: multihead completion fish | source\n";
  out +=
      fmt::format("complete -c multihead -n __fish_use_subcommand -f -a {}\n", fish_quoted(first_words("")));
  for (const char* group : {"train", "tokenizer", "bench"}) {
    out += fmt::format(
        "complete -c multihead -n '__fish_seen_subcommand_from {0}; and not __fish_seen_subcommand_from {1}' "
        "-f -a {2}\n",
        group, first_words(group), fish_quoted(first_words(group)));
  }
  out += fmt::format("complete -c multihead -n '__fish_seen_subcommand_from completion' -f -a {}\n",
                     fish_quoted(kShells));
  for_each_verb([&](const Verb& verb, const Flags& flags) {
    std::string condition;
    std::istringstream words(verb.name);
    for (std::string word; words >> word;) {
      condition += (condition.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + word);
    }
    for (const Flag& flag : flags.list()) {
      if (flag.positional) continue;
      out += fmt::format("complete -c multihead -n '{}' -l {} -d {}", condition, flag.name,
                         fish_quoted(flag.help));
      if (!flag.choices.empty())
        out += fmt::format(" -x -a {}", fish_quoted(fmt::format("{}", fmt::join(flag.choices, " "))));
      if (flag.choices.empty() && !flag.value.empty()) out += flag.is_path() ? " -r" : " -x";
      out += '\n';
    }
  });
  return out;
}

class Completion : public Verb {
 public:
  Completion()
      : Verb("completion", "print a completion script for bash, zsh or fish",
             {{"source <(multihead completion bash)", "for this shell"}}) {}
  void declare(Flags& flags) override { flags.positional("SHELL", shell_, "bash, zsh or fish"); }
  int run(const CommonOptions&) override {
    if (shell_ != "bash" && shell_ != "zsh" && shell_ != "fish") {
      throw UsageError(concat("SHELL must be bash, zsh or fish, got ", quote(shell_)));
    }
    fmt::print("{}", shell_ == "bash" ? bash() : shell_ == "zsh" ? zsh() : fish());
    return kDone;
  }

 private:
  std::string shell_;
};

}  // namespace

std::unique_ptr<Verb> make_completion() { return std::make_unique<Completion>(); }

}  // namespace multihead::cli
