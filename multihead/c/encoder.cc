#include <algorithm>
#include <string>
#include <vector>

#include "multihead/c/status-inl.h"
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

int64_t mh_encoder_dim(const mh_encoder* encoder) {
  return encoder == nullptr ? 0 : encoder->encoder.width({});
}

mh_status mh_encoder_encode(mh_encoder* encoder, const char* const* texts, size_t count, float* vectors) {
  using namespace multihead;
  return c::guarded([&] {
    const embed::SentenceEncoder& loaded = c::checked(encoder, "encoder").encoder;
    std::vector<std::string> copies;
    for (size_t i = 0; i < count; ++i)
      copies.push_back(c::checked_text((&c::checked(texts, "texts"))[i], concat("texts[", i, "]")));
    if (copies.empty()) return;
    const Tensor found = loaded.encode(copies);
    std::copy_n(found.data<float>(), found.numel(), &c::checked(vectors, "vectors"));
  });
}
