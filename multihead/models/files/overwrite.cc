#include "multihead/models/files/overwrite-inl.h"

#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/text/json.h"
#include "multihead/io/file_set.h"
#include "multihead/io/json.h"

namespace multihead::models {

void detail::refuse_another_model(const Json& config, const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  if (node_at(path) != Node::file) return;
  // Under its lock, the saving refuses what is not ours.
  if (!io::foreign_files(folder, io::kModelFiles, io::Look::sizes).empty()) return;
  const Json there = io::load_json(path), here = Json::parse(config.dump());  // numbers as the file has them
  if (there == here) return;
  std::string why = "its config.json has other keys";
  for (const JsonMember& member : here.members()) {
    const Json* const old = there.find(member.key);
    if (old != nullptr && *old == member.value) continue;
    why = concat(member.key.view(), " is ", old != nullptr ? old->dump() : "missing", " there and ",
                 member.value.dump(), " here");
    break;
  }
  throw ValueError(concat("save: folder ", quote(folder, 400), " holds another model (", why,
                          "); choose another folder, or overwrite it and save the tokenizer after it"));
}

}  // namespace multihead::models
