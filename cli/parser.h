// Command lines and --config files against flags.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "cli/verb.h"

namespace multihead::cli {

struct ParsedLine {
  bool wants_help = false;
  CommonOptions common;
};

/// Sets the flags from `arguments` (what follows the verb) and from a --config file (TOML or INI; the command
/// line wins). Throws UsageError, InputError (a config file that cannot be read).
ParsedLine parse(const std::string& verb, const Flags& flags, const std::vector<std::string>& arguments);

/// The names of the flags that the command line of this process and its --config file set.
const std::vector<std::string>& given_flags();
/// For verbs of several ways: throws UsageError for a flag that was given and that `way` ("a translator") makes
/// no use of; `used` are those it does, besides the common ones.
void use_only(const char* way, std::initializer_list<std::string_view> used);

/// The same for a choice within a way: "--top-k has no effect with --temperature 0"; for `useless` ones.
void refuse_given(const std::string& when, std::initializer_list<std::string_view> useless);

/// The text of --help.
std::string help_text(const Verb& verb, const Flags& flags);
/// The verbs, or those of a group: "train" names `train lm` and `train seq2seq`.
std::string help_text(const Verbs& verbs, const std::string& group = "");

/// ` (did you mean "--max-new-tokens"?)` with the name at the smallest edit distance from `typed`; a name
/// that contains all its words counts as near. Empty if none is near.
std::string suggestion(std::string_view typed, const std::vector<std::string>& names);

/// The flags that every verb has besides its own.
Flags common_flags(CommonOptions& common);

}  // namespace multihead::cli
