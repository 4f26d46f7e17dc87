#include <algorithm>
#include <string>
#include <vector>

#include "multihead/c/status-inl.h"
#include "multihead/core/text/utf8.h"
#include "multihead/embed/sentence_encoder.h"

struct mh_encoder {
  multihead::embed::SentenceEncoder encoder;
};

mh_status mh_encoder_load(const char* path, mh_encoder** encoder) {
  using namespace multihead;
  return c::guarded([&] {
    mh_encoder*& slot = c::emptied(encoder, "encoder");
    slot = new mh_encoder{embed::SentenceEncoder::load(&c::checked(path, "path"))};
  });
}

void mh_encoder_free(mh_encoder* encoder) { delete encoder; }

int64_t mh_encoder_dim(const mh_encoder* encoder) { return encoder == nullptr ? 0 : encoder->encoder.dim(); }

mh_status mh_encoder_encode(mh_encoder* encoder, const char* const* texts, size_t count, float* vectors) {
  using namespace multihead;
  return c::guarded([&] {
    std::vector<std::string> copies;
    for (size_t i = 0; i < count; ++i) {
      const std::string place = concat("texts[", i, "]");
      copies.emplace_back(&c::checked((&c::checked(texts, "texts"))[i], place));
      const size_t wrong = find_invalid_utf8(copies.back());
      MH_CHECK(wrong == std::string::npos, ValueError, place, " is not valid UTF-8 at byte ", wrong);
    }
    if (copies.empty()) return;
    const Tensor found = c::checked(encoder, "encoder").encoder.encode(copies);
    std::copy_n(found.data<float>(), found.numel(), &c::checked(vectors, "vectors"));
  });
}
