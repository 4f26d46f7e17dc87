// A classifier of your own: read data, define a module, train, save, load, predict.
//   rings points.csv model.safetensors
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "multihead/multihead.h"

namespace mh = multihead;

namespace {

struct Points {
  mh::Tensor positions;  // f32 [N, 2]
  mh::Tensor labels;     // i64 [N]
};

/// Lines "x,y,label".
Points read_points(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw mh::IoError("cannot open " + path);
  std::vector<float> positions;
  std::vector<int64_t> labels;
  float x = 0, y = 0;
  int64_t label = 0;
  char comma = 0;
  while (file >> x >> comma >> y >> comma >> label) {
    positions.insert(positions.end(), {x, y});
    labels.push_back(label);
  }
  const auto count = static_cast<int64_t>(labels.size());
  return {mh::Tensor::of({count, 2}, positions), mh::Tensor::of({count}, labels)};
}

/// Two layers with a residual between them. A module names its parts in visit(); the rest comes from there.
class Classifier {
 public:
  Classifier(int64_t inputs, int64_t width, int64_t classes, mh::Rng& rng)
      : first(inputs, width, rng), second(width, width, rng), out(width, classes, rng) {}

  mh::Tensor operator()(const mh::Tensor& x) const {
    const mh::Tensor hidden = mh::relu(first(x));
    return out(hidden + mh::relu(second(hidden)));
  }

  void visit(mh::nn::Visitor& visitor) {
    visitor("first", first);
    visitor("second", second);
    visitor("out", out);
  }

 private:
  mh::nn::Linear first, second, out;
};

double accuracy(const Classifier& model, const Points& points) {
  const std::vector<int64_t> found = mh::argmax(model(points.positions), -1).to_vector<int64_t>();
  const std::vector<int64_t> wanted = points.labels.to_vector<int64_t>();
  int64_t right = 0;
  for (size_t i = 0; i < wanted.size(); ++i) right += found[i] == wanted[i] ? 1 : 0;
  return static_cast<double>(right) / static_cast<double>(wanted.size());
}

void train(Classifier& model, const Points& points) {
  const mh::optim::Schedule schedule{.kind = mh::optim::ScheduleKind::cosine, .lr = 1e-2, .total_steps = 200};
  mh::optim::AdamW optimizer(mh::nn::parameters(model), {.lr = schedule.lr});
  for (int64_t step = 0; step < schedule.total_steps; ++step) {
    optimizer.set_lr(schedule.at(step));
    mh::Tape tape;
    const mh::Tensor loss = mh::cross_entropy(model(points.positions), points.labels);
    tape.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    if (step % 50 == 0) std::printf("step %3d  loss %.3f\n", static_cast<int>(step), loss.item());
  }
}

void save(Classifier& model, const std::string& path) {
  mh::io::TensorMap tensors;
  for (const mh::nn::NamedTensor& parameter : mh::nn::named_parameters(model)) {
    tensors[parameter.name] = parameter.tensor.detach();
  }
  mh::io::save_safetensors(path, tensors);
}

void load(Classifier& model, const std::string& path) {
  mh::nn::load_parameters(mh::nn::named_parameters(model), mh::io::load_safetensors(path), path);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: rings POINTS.csv MODEL.safetensors\n");
    return 2;
  }
  try {
    const Points points = read_points(argv[1]);
    mh::Rng rng(1);
    Classifier model(2, 32, 2, rng);
    std::printf("%d parameters\n", static_cast<int>(mh::nn::parameter_count(model)));
    train(model, points);
    save(model, argv[2]);

    mh::Rng other(2);
    Classifier loaded(2, 32, 2, other);
    load(loaded, argv[2]);
    std::printf("accuracy %.3f, loaded %.3f\n", accuracy(model, points), accuracy(loaded, points));
    return accuracy(loaded, points) == accuracy(model, points) && accuracy(model, points) > 0.95 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rings: %s\n", error.what());
    return 1;
  }
}
