#include "cli/verbs/index_record.h"

#include "cli/verb.h"
#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/io/json.h"

namespace multihead::cli {
namespace {

std::string path_of(const std::string& index) { return index + ".json"; }

}  // namespace

IndexRecord::IndexRecord(std::span<const std::string> texts, Json settings) : settings_(std::move(settings)) {
  for (const std::string& text : texts) texts_.update(text.c_str(), text.size() + 1);
}

void IndexRecord::add(const Tensor& vectors) {
  vectors_.update(vectors.data<float>(), static_cast<size_t>(vectors.numel()) * sizeof(float));
}

Json IndexRecord::json() const {
  return Json::object({{"texts", checksum_text(texts_.value())},
                       {"vectors", checksum_text(vectors_.value())},
                       {"settings", settings_}});
}

void IndexRecord::check_vacant(const std::string& index) {
  const std::string path = path_of(index);
  if (node_at(path) == Node::absent) return;
  Json before;
  try {
    before = io::load_json(path);
  } catch (const FormatError&) {
  }
  const bool is_ours =
      before.is_object() && before.find("vectors") != nullptr && before.find("settings") != nullptr;
  if (!is_ours)
    throw InputError(concat(path, ": is no record of vectors, which would be written there; move it away"));
}

void IndexRecord::save(const std::string& index) const {
  write_file_atomically(path_of(index), [&](FileWriter& file) { file.write(json().dump(2) + "\n"); });
}

bool IndexRecord::check(const std::string& index) const {
  if (node_at(path_of(index)) == Node::absent) return false;
  const Json before = reading([&] { return io::load_json(path_of(index)); }), now = json();
  const auto word = [](const Json& record, std::string_view key) {
    const Json* found = record.is_object() ? record.find(key) : nullptr;
    return found != nullptr ? found->dump() : "unknown";
  };
  Enumeration different;
  if (word(before, "texts") != word(now, "texts")) different.add("from other texts");
  const Json* settings = before.is_object() ? before.find("settings") : nullptr;
  for (const JsonMember& setting : settings_.members()) {
    const std::string was = settings != nullptr ? word(*settings, setting.key.view()) : "unknown";
    if (was != setting.value.dump())
      different.add("with --", setting.key, " ", was, ", not ", setting.value.dump());
  }
  if (!different.empty())
    throw InputError(concat(index, ": was made ", different, "; delete it to recreate it"));
  if (word(before, "vectors") != word(now, "vectors")) {
    throw InputError(concat(index, ": the vectors are not those that ", path_of(index),
                            " describes; delete both to recreate them"));
  }
  return true;
}

}  // namespace multihead::cli
