#include "multihead/train/run_folder.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <fstream>

#include "multihead/core/threads/parallel.h"
#include "multihead/io/json.h"
#include "multihead/io/staging.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/testing/files.h"
#include "multihead/train/tasks/language_model_run.h"
#include "multihead/train/tasks/seq2seq_run.h"

namespace multihead::train {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

void put(const std::string& path, std::string_view content) {
  std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
}

// The smallest runs there are.
class RunFolderTest : public testing::Test {
 protected:
  RunFolderTest() {
    set_num_threads(1);
    put(root_ / "text.txt", "abcabcabcacbabcabcabcaacbcabcabbcabcabcacb");
    put(root_ / "pairs.tsv", "ab\tAB\nba\tBA\nbb\tBB\n");
  }

  void train_lm(const std::string& folder, bool resume, bool overwrite, int64_t width = 4) const {
    LanguageModelRun run{{.data = root_ / "text.txt", .tokenizer = {}, .folder = folder}, {}};
    run.resume = resume, run.overwrite = overwrite;
    LanguageModelSettings& s = run.settings;
    s.model.num_layers = 1, s.model.num_heads = 1, s.model.embed_dim = width, s.model.context = 4;
    s.tokenizer = TokenizerChoice::characters, s.validation_share = 0;
    s.steps = 2, s.batch = 1, s.eval_every = 1, s.keep = 1, s.warmup_steps = 0;
    train_language_model(run);
  }
  void train_translator(const std::string& folder, bool resume, bool overwrite) const {
    Seq2SeqRun run{{.data = root_ / "pairs.tsv", .tokenizer = {}, .folder = folder}, {}};
    run.resume = resume, run.overwrite = overwrite;
    Seq2SeqSettings& s = run.settings;
    s.model.encoder_layers = s.model.decoder_layers = 1;
    s.model.num_heads = 1, s.model.embed_dim = 4, s.model.max_positions = 8;
    s.tokenizer = TokenizerChoice::characters, s.shared_vocabulary = false;
    s.max_tokens = 8, s.batch_tokens = 16, s.steps = 2, s.eval_every = 1, s.keep = 1, s.warmup_steps = 0;
    train_seq2seq(run);
  }

  const TemporaryFolder root_;
};

// Which model a folder holds: "lm <width>", "translator", or why it holds none. A mixture fails the test.
std::string model_in(const std::string& folder) {
  try {
    const bool translator = models::is_seq2seq_folder(folder);
    const PairTokenizers tokenizers = load_pair_tokenizers(folder);
    if (translator) {
      const models::Seq2Seq model = models::load_seq2seq(folder);
      EXPECT_FALSE(tokenizers.shared);
      EXPECT_EQ(tokenizers.target.vocab_size(), model.config().target_vocab_size);
      EXPECT_EQ(tokenizers.source.vocab_size(), model.config().source_vocab_size);
      return "translator";
    }
    const models::LanguageModel model = models::load_language_model(folder);
    EXPECT_TRUE(tokenizers.shared);
    EXPECT_EQ(tokenizers.target.vocab_size(), model.config().vocab_size);
    return concat("lm ", model.config().embed_dim);
  } catch (const FormatError& error) {
    return error.what();
  }
}

using Make = std::function<void(const std::string&)>;

Make file(const char* name) {
  return [=](const std::string& folder) { put(folder + "/" + name, "precious"); };
}

Make link_to_outside(const char* name) {
  return [=](const std::string& folder) {
    put(folder + "-outside", "precious");
    fs::remove(folder + "/" + name);
    fs::create_symlink(folder + "-outside", folder + "/" + name);
  };
}

Make second_name(const char* name) {
  return [=](const std::string& folder) {
    put(folder + "-outside", "precious");
    fs::remove(folder + "/" + name);
    fs::create_hard_link(folder + "-outside", folder + "/" + name);
  };
}

Make pipe_at(const char* name) {
  return [=](const std::string& folder) {
    fs::remove(folder + "/" + name);
    ASSERT_EQ(::mkfifo((folder + "/" + name).c_str(), 0600), 0);
  };
}

Make socket_at(const char* name) {
  return [=](const std::string& folder) {
    fs::remove(folder + "/" + name);
    sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
    (folder + "/" + name).copy(address.sun_path, sizeof address.sun_path - 1);
    const int descriptor = ::socket(AF_UNIX, SOCK_STREAM, 0);
    ASSERT_EQ(::bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    ::close(descriptor);
  };
}

Make folder_at(const char* name) {
  return [=](const std::string& folder) {
    fs::remove(folder + "/" + name);
    fs::create_directory(folder + "/" + name);
    put(folder + "/" + name + "/pytorch_model.bin", "precious");
  };
}

struct Foreign {
  const char* what;
  Make make;
};

// Nodes that may lie under a name that a run writes without being the run's.
const std::vector<Foreign>& foreign_things() {
  static const std::vector<Foreign> table = [] {
    std::vector<Foreign> list = {
        {"a Trainer's checkpoint", folder_at("checkpoint-3")},
        {"a checkpoint with a foreign manifest",
         [](const std::string& folder) {
           fs::create_directory(folder + "/checkpoint-3");
           put(folder + "/checkpoint-3/manifest.json", "{}");
         }},
        {"a checkpoint of another run",
         [](const std::string& folder) { io::save_checkpoint(folder, 3, {}, "0123456789abcdef"); }},
        {"a checkpoint of no run", [](const std::string& folder) { io::save_checkpoint(folder, 3, {}); }},
        {"a linked checkpoint",
         [](const std::string& folder) {
           io::save_checkpoint(folder + "-outside", 3, {});
           fs::create_directory_symlink(folder + "-outside/checkpoint-3", folder + "/checkpoint-3");
         }},
        {"a checkpoint that is a file", file("checkpoint-3")},
        {"a foreign lock", file(".lock")},
        {"a linked lock", link_to_outside(".lock")},
        {"a hard-linked lock", second_name(".lock")},
        {"a lock without content beside a model",
         [](const std::string& folder) {
           put(folder + "/.lock", "");
           put(folder + "/config.json", "precious");
         }},
        {"a lock that is a pipe", pipe_at(".lock")},
        {"a lock that is a folder", folder_at(".lock")},
        {"a foreign manifest", file("manifest.json")}};
    for (const char* name : {"train_config.json", "metrics.jsonl", "metrics.csv", "summary.json",
                             "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}) {
      list.push_back({name, link_to_outside(name)});
      list.push_back({name, pipe_at(name)});
      list.push_back({name, socket_at(name)});
      list.push_back({name, folder_at(name)});
    }
    for (const char* name : {"config.json", "model.safetensors", "tokenizer.json", "source_tokenizer.json",
                             "tokenizer_config.json", "train_config.json"}) {
      list.push_back({name, file(name)});
    }
    return list;
  }();
  return table;
}

// Foreign contents x verbs x (no flag, --resume, --overwrite) x (an empty folder, a finished run, one that
// was killed before its model): every cell is refused and nothing in the folder or outside it has changed.
TEST_F(RunFolderTest, WhatIsNotTheRunsIsRefusedBeforeTheFirstByte) {
  train_lm(root_ / "finished", false, false);
  train_lm(root_ / "unfinished", false, false);
  io::remove_files(root_ / "unfinished", io::kModelFolderFiles);
  int cells = 0;
  for (const char* start : {"", "finished", "unfinished"}) {
    for (const Foreign& foreign : foreign_things()) {
      const TemporaryFolder place;
      const std::string folder = place / "out";
      fs::create_directory(folder);
      if (*start != '\0') fs::copy(root_ / start, folder, fs::copy_options::recursive);
      foreign.make(folder);
      const auto before = tree_of(place.path());
      for (const bool translator : {false, true}) {
        for (const auto& [resume, overwrite] : {std::pair(false, false), {true, false}, {false, true}}) {
          const auto train = [&, resume = resume, overwrite = overwrite] {
            translator ? train_translator(folder, resume, overwrite) : train_lm(folder, resume, overwrite);
          };
          const std::string message = message_of<ValueError>(train);
          EXPECT_THAT(message, HasSubstr("another folder")) << start << ": " << foreign.what;
          EXPECT_EQ(tree_of(place.path()), before) << start << ": " << foreign.what;
          ++cells;
        }
      }
    }
  }
  EXPECT_GT(cells, 900);
}

// Names that no run writes are left alone, however they look.
TEST_F(RunFolderTest, OtherNamesAreLeftAlone) {
  const std::string folder = root_ / "out";
  for (const char* name : {"backup-2024.tmp", "photos.tmp", "checkpoint-3.tmp", "checkpoint-007", "mine"}) {
    fs::create_directories(folder + "/" + name);
    put(folder + "/" + name + "/manifest.json", "{}");
  }
  for (const char* name : {"notes.tmp-1-2", "config.json.tmp-1-2", "README.md", "generation_config.json"}) {
    put(folder + "/" + name, "precious");
  }
  const auto before = tree_of(folder);
  train_lm(folder, false, false);
  train_lm(folder, true, false);
  train_lm(folder, false, true);
  const auto after = tree_of(folder);
  for (const auto& [path, content] : before) EXPECT_EQ(after.at(path), content) << path;
  EXPECT_EQ(model_in(folder), "lm 4");
}

TEST_F(RunFolderTest, TheFolderItselfMayBeALink) {
  fs::create_directory(root_ / "disk");
  fs::create_directory_symlink("disk", root_ / "out");
  train_lm(root_ / "out", false, false);
  train_lm(root_ / "out", false, true);
  EXPECT_EQ(model_in(root_ / "disk"), "lm 4");
}

// As `cp -al` makes them: files are replaced, never written in place.
TEST_F(RunFolderTest, HardLinkedCopiesStayAsTheyAre) {
  train_lm(root_ / "a", false, false);
  fs::copy(root_ / "a", root_ / "copy", fs::copy_options::recursive | fs::copy_options::create_hard_links);
  const auto before = tree_of(root_ / "copy");
  fs::remove(root_ / "a/config.json");
  train_lm(root_ / "a", true, false);
  train_lm(root_ / "a", false, true);
  EXPECT_EQ(tree_of(root_ / "copy"), before);
}

TEST_F(RunFolderTest, AFinishedModelIsNotTradedForARunWithoutACheckpoint) {
  train_lm(root_ / "a", false, false);
  fs::remove_all(root_ / "a/checkpoint-2");
  EXPECT_THAT(message_of<ValueError>([&] { train_lm(root_ / "a", false, false); }),
              HasSubstr("holds a run without a checkpoint; resume it, overwrite it"));
  EXPECT_THAT(message_of<ValueError>([&] { train_lm(root_ / "a", true, false); }),
              HasSubstr("holds a model but no checkpoint to resume from"));
  EXPECT_EQ(model_in(root_ / "a"), "lm 4");
}

// A folder of an earlier version: no number in the record and in the manifests, no manifest of the model.
void make_old(const std::string& folder) {
  Json record = io::load_json(folder + "/train_config.json");
  record.erase("run");
  io::save_json(folder + "/train_config.json", record);
  fs::remove(folder + "/manifest.json");
  const auto contents = io::load_checkpoint(folder + "/checkpoint-2");
  fs::remove_all(folder + "/checkpoint-2");
  io::save_checkpoint(folder, 2, contents);
}

TEST_F(RunFolderTest, RunsOfEarlierVersionsGoOn) {
  for (const bool overwrite : {false, true}) {
    const std::string folder = root_ / (overwrite ? "overwritten" : "resumed");
    train_lm(folder, false, false);
    const std::string weights = read_file(folder + "/model.safetensors");
    make_old(folder);
    EXPECT_THAT(message_of<ValueError>([&] { train_lm(folder, false, false); }), HasSubstr("of 2 steps"));
    train_lm(folder, !overwrite, overwrite);
    EXPECT_EQ(read_file(folder + "/model.safetensors"), weights);
    train_lm(folder, !overwrite, overwrite);
  }
}

// A kill at any change on the disk leaves the old model, the new one, or none and words for it; what is left
// can be trained over, and no foreign file is lost.
TEST_F(RunFolderTest, AKillAtAnyMomentOfOverwritingLeavesNoMixtureSlow) {
  struct Case {
    const char* name;
    std::function<void(const std::string&)> before, then;
    std::string old_model, new_model;
  };
  const auto lm = [&](int64_t width, bool overwrite) {
    return [=, this](const std::string& folder) { train_lm(folder, false, overwrite, width); };
  };
  const auto translator = [&](bool overwrite) {
    return [=, this](const std::string& folder) { train_translator(folder, false, overwrite); };
  };
  const std::vector<Case> cases = {
      {"lm over lm", lm(6, false), lm(4, true), "lm 6", "lm 4"},
      {"lm over translator", translator(false), lm(4, true), "translator", "lm 4"},
      {"translator over lm", lm(6, false), translator(true), "lm 6", "translator"}};
  for (const Case& c : cases) {
    const std::string seed = root_ / concat(c.name, " seed"), folder = root_ / c.name;
    c.before(seed);
    put(seed + "/notes.txt", "mine");
    std::map<std::string, int> seen;
    const int kills = kill_everywhere(
        [&] {
          fs::remove_all(folder);
          fs::copy(seed, folder, fs::copy_options::recursive);
        },
        [&] { c.then(folder); },
        [&](int nth) {
          std::string model = model_in(folder);
          if (model.find("continue with --resume") != std::string::npos) model = "refused";
          EXPECT_THAT(model, testing::AnyOf(c.old_model, c.new_model, "refused")) << c.name << " " << nth;
          EXPECT_EQ(read_file(folder + "/notes.txt"), "mine");
          ++seen[model];
          if (nth % 10 != 0) return;
          c.then(folder);
          EXPECT_EQ(model_in(folder), c.new_model) << c.name << " " << nth;
          EXPECT_TRUE(io::find_leftovers(folder).empty());
        });
    std::printf("%s: %d kills, %d old, %d refused, %d new\n", c.name, kills, seen[c.old_model],
                seen["refused"], seen[c.new_model]);
    EXPECT_GT(seen[c.old_model], 0);
    EXPECT_GT(seen["refused"], 50);
    EXPECT_GT(seen[c.new_model], 0);
  }
}

TEST_F(RunFolderTest, AKillAtAnyMomentOfSavingLeavesNoMixture) {
  Rng rng(1);
  const auto model = [&](int64_t width) {
    return models::LanguageModel(
        {.vocab_size = 7, .context = 4, .num_layers = 1, .num_heads = 1, .embed_dim = width}, rng);
  };
  models::LanguageModel old_model = model(4), new_model = model(6);
  const auto tokenizer = text::Tokenizer::train_characters("abcdefg");
  std::map<int64_t, int> seen;
  const std::string folder = root_ / "m";
  const auto width_in = [](const std::string& path) {
    return models::load_language_model(path).config().embed_dim;
  };
  const int kills = kill_everywhere(
      [&] {
        fs::remove_all(folder);
        tokenizer.save(folder);
        models::save_language_model(old_model, folder);
      },
      [&] { models::save_language_model(new_model, folder, true); },
      [&](int nth) {
        const int64_t found = width_in(folder);
        EXPECT_THAT(found, testing::AnyOf(4, 6)) << nth;
        // The tokenizer goes with its model.
        EXPECT_EQ(node_at(folder + "/tokenizer.json") == Node::file, found == 4) << nth;
        ++seen[found];
        models::save_language_model(new_model, folder, true);
        EXPECT_EQ(width_in(folder), 6);
      });
  std::printf("%d kills, %d old, %d new\n", kills, seen[4], seen[6]);
  EXPECT_GT(kills, 20);
  EXPECT_GT(seen[4], 5);
  EXPECT_GT(seen[6], 5);
  EXPECT_THAT([&] { models::save_language_model(old_model, folder); },
              testing::ThrowsMessage<ValueError>(HasSubstr("holds another model (")));

  // The tokenizer over another.
  const auto other = text::Tokenizer::train_characters("abcdefg", {.special = {.eos = "<e>"}});
  std::map<std::string, int> tokenizers;
  kill_everywhere(
      [&] {
        fs::remove_all(folder);
        tokenizer.save(folder);
      },
      [&] { other.save(folder); },
      [&](int nth) {
        const auto found = text::Tokenizer::load(folder);
        EXPECT_EQ(found.eos_id().has_value(), found.vocab_size() == 8) << nth;
        ++tokenizers[found.vocab_size() == 8 ? "new" : "old"];
      });
  std::printf("tokenizer: %d old, %d new\n", tokenizers["old"], tokenizers["new"]);
  EXPECT_GT(tokenizers["old"], 5);
  EXPECT_GT(tokenizers["new"], 5);
}

}  // namespace
}  // namespace multihead::train
