# The command line and the C++ library on Linux, from this clone:
#   brew install --HEAD --formula packaging/homebrew/multihead.rb
class Multihead < Formula
  desc "Multi-head attention and Transformers on a CPU, trained and run"
  license "Apache-2.0"
  head "file://#{File.expand_path("../..", __dir__)}", using: :git

  depends_on "cmake" => :build
  depends_on "ninja" => :build
  depends_on "nlohmann-json" => :build
  depends_on "pkgconf" => :build
  depends_on "fmt"
  depends_on "highway"
  depends_on "libevent"
  depends_on "libpng"
  depends_on :linux
  depends_on "utf8proc"

  def install
    system "cmake", "-G", "Ninja", "-S", ".", "-B", "build", "-DMULTIHEAD_BUILD_TESTS=OFF",
           "-DMULTIHEAD_BUILD_EXAMPLES=OFF", *std_cmake_args
    system "cmake", "--build", "build"
    system "cmake", "--install", "build"
  end

  test do
    (testpath/"text").write "It was the best of times, it was the worst of times.\n" * 20
    system bin/"multihead", "train", "lm", "--data", "text", "--out", "model", "--preset", "tiny", "--steps", "2"
    assert_path_exists testpath/"model/model.safetensors"
  end
end
