#include "multihead/train/loop.h"

#include <gmock/gmock.h>

#include "multihead/ops/elementwise.h"
#include "multihead/optim/sgd.h"
#include "multihead/testing/files.h"

namespace multihead::train {
namespace {

using ::testing::ElementsAre;

// One weight; its evaluations, the first before the first step, find what a test says.
class ScriptedTask : public Task {
 public:
  explicit ScriptedTask(std::vector<double> losses, std::vector<double> figures = {})
      : losses_(std::move(losses)), figures_(std::move(figures)) {
    weight.set_requires_grad(true);
  }
  Loss loss(int64_t) override { return {sum(square(weight)), 1}; }
  double targets(int64_t) const override { return 1; }
  std::optional<double> evaluate(const Sharing&) override { return losses_.at(count_++); }
  Figures metrics() const override {
    if (figures_.empty()) return {};
    return {{"pearson", figures_.at(count_ - 1)}};
  }
  void save(io::CheckpointContents& contents) override {
    contents.tensors["model.safetensors"]["weight"] = weight;
  }
  void load(const std::string&) override {}
  Json identity() const override { return Json::object(); }

  Tensor weight = Tensor::full({1}, 1);

 private:
  std::vector<double> losses_, figures_;
  size_t count_ = 0;
};

struct BestSteps : Observer {
  void on_evaluation(const EvalReport& e) override {
    if (e.is_best) steps.push_back(e.step);
  }
  std::vector<int64_t> steps;
};

// A mean of the last ones may be the model.
TEST(TrainLoopTest, TheBestCheckpointBetweenThoseOfThePlanTakesThePlaceOfNone) {
  const TemporaryFolder folder;
  ScriptedTask task({9, 5, 4, 6, 6, 3, 6, 6, 6});
  optim::SGD optimizer(std::vector<nn::NamedTensor>{{"weight", task.weight}});
  TrainLoop loop(task, optimizer,
                 {.folder = folder.path(), .steps = 8, .eval_every = 1, .save_every = 3, .keep = 2});
  loop.run();
  std::vector<int64_t> steps;
  for (const io::CheckpointInfo& info : io::list_checkpoints(folder.path())) steps.push_back(info.step);
  EXPECT_THAT(steps, ElementsAre(5, 6, 8));
}

// A correlation is none where nothing varies.
TEST(TrainLoopTest, NanIsNeverAnImprovement) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  struct {
    std::vector<double> figures;
    std::vector<int64_t> bests;
    Ending ending;
  } cases[] = {{{kNan, kNan, 0.1, kNan, 0.2}, {2, 4}, Ending::finished},
               {{0.5, kNan, kNan, 0.6, 0.7}, {}, Ending::stopped_early},
               {{0.5, kNan, 0.6, kNan, kNan}, {2}, Ending::finished}};
  for (const auto& c : cases) {
    const TemporaryFolder folder;
    ScriptedTask task({1, 1, 1, 1, 1}, c.figures);
    optim::SGD optimizer(std::vector<nn::NamedTensor>{{"weight", task.weight}});
    BestSteps bests;
    TrainLoop loop(task, optimizer,
                   {.folder = folder.path(), .steps = 4, .eval_every = 1, .best = "pearson", .patience = 2},
                   {&bests});
    EXPECT_EQ(loop.run(), c.ending) << c.bests.size();
    EXPECT_EQ(bests.steps, c.bests);
  }
}

}  // namespace
}  // namespace multihead::train
