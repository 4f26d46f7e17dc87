#include "multihead/serve/dialects/openai_writer-inl.h"

#include <utility>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"

namespace multihead::serve {
namespace {

// How long a completion is so far, in characters of what is shown: a character counts from its first byte on, however many
// tokens it is split over, and what is no UTF-8 is shown as U+FFFD.
class TextOffset {
 public:
  int64_t characters() const { return whole_ + count_utf8(valid_utf8(tail_)); }
  void add(std::string_view bytes) {
    tail_ += bytes;
    const size_t whole = complete_utf8(tail_);
    whole_ += count_utf8(valid_utf8(std::string_view(tail_).substr(0, whole)));
    tail_.erase(0, whole);
  }

 private:
  int64_t whole_ = 0;
  std::string tail_;
};

Json usage_json(const Usage& usage) {
  return Json::object({{"prompt_tokens", usage.prompt_tokens},
                       {"completion_tokens", usage.new_tokens},
                       {"total_tokens", usage.total()}});
}

// A token as text and as bytes: it may hold part of a character.
Json logprob_json(const text::Tokenizer& tokenizer, const TokenLogprob& token) {
  const std::string bytes = tokenizer.decode(std::span(&token.token, 1), {.continued = true});
  Json list = Json::array();
  for (const char byte : bytes) list.push_back(int64_t{static_cast<unsigned char>(byte)});
  return Json::object({{"token", valid_utf8(bytes)}, {"logprob", token.logprob}, {"bytes", list}});
}

class OpenAiWriter : public GenerationListener {
 public:
  OpenAiWriter(OpenAiForm form, ServedModel& model, std::shared_ptr<Reply> reply, size_t choices)
      : form_(std::move(form)), model_(model), reply_(std::move(reply)), choices_(choices) {
    if (!form_.tools) return;
    for (Choice& choice : choices_) choice.parser.emplace(*form_.tools, form_.in_call, form_.only_one);
  }

  void begin() override {
    if (!form_.streams) return;
    reply_->begin("text/event-stream");
    if (!form_.is_chat) return;
    for (size_t c = 0; c < choices_.size(); ++c) {
      send(c, Json::object({{"role", "assistant"}, {"content", ""}}), Json(), Json());
    }
  }

  void prompt(size_t choice, std::span<const int32_t> ids, std::span<const TokenLogprobs> logprobs) override {
    const std::string text = valid_utf8(model_.writer().tokenizer.decode(ids));
    Choice& own = choices_[choice];
    own.text += text;
    if (form_.has_logprobs) {
      own.tokens.push_back(unscored(ids[0]));
      for (const TokenLogprobs& one : logprobs) add_logprobs(own, one);
    }
    if (form_.streams) send_text(choice, text, Json());
  }

  void token(size_t choice, const Token& token) override {
    Choice& own = choices_[choice];
    if (token.logprobs != nullptr) add_logprobs(own, *token.logprobs);
    if (own.parser) {
      show(choice, own.parser->add(token.text));
      return;
    }
    own.text += token.text;
    if (!form_.streams || (token.text.empty() && token.logprobs == nullptr)) return;
    send_text(choice, token.text, Json());
  }

  void end(size_t choice, std::string_view rest, bool is_full) override {
    Choice& own = choices_[choice];
    if (own.parser) {
      show(choice, own.parser->add(rest));
      show(choice, own.parser->end());
    } else {
      own.text += rest;
      if (form_.streams && !rest.empty()) send_text(choice, rest, Json());
    }
    own.reason = is_full ? "length" : own.calls.size() > 0 ? "tool_calls" : "stop";
    if (!form_.streams) return;
    if (form_.is_chat) {
      send(choice, Json::object(), take_logprobs(own), own.reason);
    } else {
      send_text(choice, "", own.reason);
    }
  }

  void finish(const Usage& usage) override {
    count_usage(model_, *reply_, usage);
    if (!form_.streams) {
      reply_->answer_json(whole(usage).dump());
      return;
    }
    if (form_.shows_usage) {
      Json event = frame();
      event["choices"] = Json::array();
      event["usage"] = usage_json(usage);
      put(event);
    }
    reply_->end("data: [DONE]\n\n");
  }

 private:
  struct Choice {
    std::string text, reason;
    Json tokens = Json::array();  // log-probabilities, of all tokens or of those not sent yet
    TextOffset offset = {};
    std::optional<text::ToolCallParser> parser = {};
    std::vector<Json> calls = {};
  };

  // Content and calls, as they come.
  void show(size_t choice, const std::vector<text::ToolCallParser::Event>& events) {
    Choice& own = choices_[choice];
    for (const auto& event : events) {
      if (event.call < 0) {
        own.text += event.content;
        if (form_.streams) send_text(choice, event.content, Json());
        continue;
      }
      Json delta = Json::object({{"index", event.call}});
      if (!event.name.empty()) {
        const Json function = Json::object({{"name", event.name}, {"arguments", ""}});
        own.calls.push_back(
            Json::object({{"id", fresh_call_id()}, {"type", "function"}, {"function", function}}));
        delta = own.calls.back();
        delta["index"] = event.call;
      } else {
        Json& function = own.calls.back()["function"];
        function["arguments"] = function.at("arguments").as_string() + event.arguments;
        delta["function"] = Json::object({{"arguments", event.arguments}});
      }
      if (form_.streams)
        send(choice, Json::object({{"tool_calls", Json(std::vector<Json>{delta})}}), take_logprobs(own),
             Json());
    }
  }

  Json frame() const {
    const char* object =
        form_.is_chat ? (form_.streams ? "chat.completion.chunk" : "chat.completion") : "text_completion";
    return Json::object(
        {{"id", form_.id}, {"object", object}, {"created", form_.created}, {"model", form_.model_name}});
  }
  void put(const Json& event) { reply_->write("data: " + event.dump() + "\n\n"); }

  void send_text(size_t choice, std::string_view text, const Json& reason) {
    const Json logprobs = take_logprobs(choices_[choice]);
    send(choice, form_.is_chat ? Json::object({{"content", text}}) : Json(text), logprobs, reason);
  }
  void send(size_t choice, const Json& content, const Json& logprobs, const Json& reason) {
    Json event = frame();
    event["choices"] = Json(std::vector<Json>{Json::object({{"index", static_cast<int64_t>(choice)},
                                                            {form_.is_chat ? "delta" : "text", content},
                                                            {"logprobs", logprobs},
                                                            {"finish_reason", reason}})});
    if (form_.shows_usage) event["usage"] = Json();
    put(event);
  }

  // The first token of a prompt: nothing is before it.
  Json unscored(int32_t id) const {
    Json token = logprob_json(model_.writer().tokenizer, {id, 0});
    token["logprob"] = Json();
    token["top_logprobs"] = Json();
    return token;
  }
  void add_logprobs(Choice& choice, const TokenLogprobs& all) {
    Json token = logprob_json(model_.writer().tokenizer, all.chosen);
    Json top = Json::array();
    for (const TokenLogprob& other : all.top) top.push_back(logprob_json(model_.writer().tokenizer, other));
    token["top_logprobs"] = std::move(top);
    choice.tokens.push_back(std::move(token));
  }
  Json take_logprobs(Choice& choice) const {
    if (!form_.has_logprobs) return {};
    const Json tokens = std::exchange(choice.tokens, Json::array());
    return form_.is_chat ? Json::object({{"content", tokens}, {"refusal", Json()}})
                         : in_columns(tokens, choice.offset);
  }

  // The token as completions name it: its text, or bytes:\xe2\x80 where it is a part of a character.
  static std::string name_of(const Json& token) {
    std::string bytes, spelled = "bytes:";
    for (const Json& byte : token.at("bytes").items()) {
      const auto value = static_cast<size_t>(byte.as_int());
      bytes += static_cast<char>(value);
      spelled += {'\\', 'x', "0123456789abcdef"[value / 16], "0123456789abcdef"[value % 16]};
    }
    return find_invalid_utf8(bytes) == bytes.npos ? bytes : spelled;
  }

  // As completions have them: a list for each member; alternatives that look alike count once, the first.
  static Json in_columns(const Json& tokens, TextOffset& offset) {
    Json texts = Json::array(), values = Json::array(), tops = Json::array(), offsets = Json::array();
    for (const Json& token : tokens.items()) {
      const Json& alternatives = token.at("top_logprobs");
      Json top = alternatives.is_null() ? Json() : Json::object();
      for (size_t i = 0; i < alternatives.size(); ++i) {
        const std::string text = name_of(alternatives.at(i));
        if (!top.contains(text)) top[text] = alternatives.at(i).at("logprob");
      }
      texts.push_back(name_of(token));
      values.push_back(token.at("logprob"));
      tops.push_back(std::move(top));
      offsets.push_back(offset.characters());
      std::string bytes;
      for (const Json& byte : token.at("bytes").items()) bytes += static_cast<char>(byte.as_int());
      offset.add(bytes);
    }
    return Json::object(
        {{"tokens", texts}, {"token_logprobs", values}, {"top_logprobs", tops}, {"text_offset", offsets}});
  }

  Json whole(const Usage& usage) {
    Json list = Json::array();
    for (size_t c = 0; c < choices_.size(); ++c) {
      Json choice = Json::object({{"index", static_cast<int64_t>(c)}});
      if (form_.is_chat) {
        const bool is_silent = choices_[c].text.empty() && !choices_[c].calls.empty();
        choice["message"] = Json::object({{"role", "assistant"},
                                          {"content", is_silent ? Json() : Json(choices_[c].text)},
                                          {"refusal", Json()}});
        if (!choices_[c].calls.empty()) choice["message"]["tool_calls"] = Json(choices_[c].calls);
      } else {
        choice["text"] = choices_[c].text;
      }
      choice["logprobs"] = take_logprobs(choices_[c]);
      choice["finish_reason"] = choices_[c].reason;
      list.push_back(std::move(choice));
    }
    Json answer = frame();
    answer["choices"] = std::move(list);
    answer["usage"] = usage_json(usage);
    return answer;
  }

  OpenAiForm form_;
  ServedModel& model_;
  std::shared_ptr<Reply> reply_;
  std::vector<Choice> choices_;
};

}  // namespace

std::unique_ptr<GenerationListener> openai_writer(OpenAiForm form, ServedModel& model,
                                                  std::shared_ptr<Reply> reply, size_t choices) {
  return std::make_unique<OpenAiWriter>(std::move(form), model, std::move(reply), choices);
}

std::string fresh_call_id() { return fresh_id("").substr(0, 9); }

}  // namespace multihead::serve
