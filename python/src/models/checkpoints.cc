// Checkpoints of a training run.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "multihead/io/checkpoint.h"
#include "python/src/bindings.h"
#include "python/src/modules.h"
#include "python/src/path.h"

namespace multihead::python {
namespace {

nb::dict info_dict(const io::CheckpointInfo& info) {
  nb::dict result;
  result["step"] = info.step, result["path"] = Path(info.path), result["problem"] = info.problem;
  return result;
}

std::string bytes_of(nb::handle content) {
  if (PyBytes_Check(content.ptr()) == 0) return nb::cast<std::string>(content);
  const auto bytes = nb::borrow<nb::bytes>(content);
  return {bytes.c_str(), bytes.size()};
}

Path save(const Path& folder, int64_t step, nb::dict tensors, nb::dict files) {
  io::CheckpointContents contents;
  for (auto [name, map] : tensors) {
    contents.tensors[nb::cast<std::string>(name)] = to_tensor_map(map, "save_checkpoint");
  }
  for (auto [name, content] : files) contents.files[nb::cast<std::string>(name)] = bytes_of(content);
  return unlocked([&] { return io::save_checkpoint(folder, step, contents); });
}

nb::tuple load(const Path& path) {
  const io::CheckpointContents contents = unlocked([&] { return io::load_checkpoint(path); });
  nb::dict tensors, files;
  for (const auto& [name, map] : contents.tensors) tensors[name.c_str()] = to_dict(map);
  for (const auto& [name, content] : contents.files) {
    files[name.c_str()] = nb::bytes(content.data(), content.size());
  }
  return nb::make_tuple(tensors, files);
}

}  // namespace

void bind_checkpoints(nb::module_& m) {
  m.def("save_checkpoint", &save, "folder"_a, "step"_a, "tensors"_a, "files"_a = nb::dict(),
        "Atomically writes folder/checkpoint-<step> and returns its path. tensors: "
        "{'model.safetensors': state_dict,\n…}; files: {'state.json': str or bytes, …}.");
  m.def("load_checkpoint", &load, "path"_a,
        "(tensors, files) as given to save_checkpoint(), every byte verified; files are bytes.");
  m.def(
      "list_checkpoints",
      [](const Path& folder) {
        nb::list result;
        for (const auto& info : unlocked([&] { return io::list_checkpoints(folder); })) {
          result.append(info_dict(info));
        }
        return result;
      },
      "folder"_a,
      "Dicts 'step', 'path', 'problem' by ascending step; 'problem' is empty for complete checkpoints.");
  m.def(
      "newest_checkpoint",
      [](const Path& folder, const std::string& damage) -> nb::object {
        const auto rule =
            to_enum<io::OnDamage>(damage, "newest_checkpoint: damage",
                                  {{"fail", io::OnDamage::fail}, {"fall_back", io::OnDamage::fall_back}});
        const auto info = unlocked([&] { return io::newest_checkpoint(folder, rule); });
        return info ? nb::object(info_dict(*info)) : nb::none();
      },
      "folder"_a, "damage"_a = "fail",
      "The checkpoint to resume from, or None. damage: 'fail' raises FormatError if the newest is corrupt, "
      "'fall_back'\ntakes the newest intact one.");
  m.def(
      "verify_checkpoint", [](const Path& path) { io::verify_checkpoint(path); }, "path"_a,
      nb::call_guard<Unlocked>(), "Reads every byte; FormatError names the corrupt file.");
  m.def(
      "prune_checkpoints",
      [](const Path& folder, int64_t keep_newest, std::vector<int64_t> steps) {
        return unlocked([&] { return io::prune_checkpoints(folder, {keep_newest, std::move(steps)}); });
      },
      "folder"_a, nb::kw_only(), "keep_newest"_a = 2, "steps"_a = std::vector<int64_t>(),
      "Deletes the other complete checkpoints; `steps` are kept as well as the newest. Returns the deleted "
      "steps.");
}

}  // namespace multihead::python
