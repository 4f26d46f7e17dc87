"""What a Python user meets first: text to text, printed modules and configurations, schedules."""

import json
import shutil

import numpy as np

import pytest

import multihead as mh

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("writer")
    tokenizer = mh.Tokenizer.train_bpe(["the cat sat on the mat. " * 50], vocab_size=270)
    config = mh.models.LanguageModelConfig(vocab_size=tokenizer.vocab_size, context=64, num_layers=1, num_heads=2, embed_dim=16)
    mh.models.LanguageModel(config, rng=mh.Rng(3)).save(folder)
    tokenizer.save(folder)
    return folder


def test_text_to_text(folder):
    writer = mh.TextGenerator(folder)
    ids = writer.tokenizer.encode("the cat")
    found = writer.generate("the cat", max_new_tokens=7, temperature=0)
    new = writer.model.generate(ids, max_new_tokens=7, temperature=0, stop_tokens=[writer.tokenizer.eos_id])
    assert isinstance(found, str) and found == writer.tokenizer.decode(new, skip_special=True, continued=True)
    assert writer.generate(["the cat", "on"], max_new_tokens=7, temperature=0)[0] == found
    pieces = []
    assert writer.generate("the cat", max_new_tokens=7, temperature=0, on_text=pieces.append) == found
    assert "".join(pieces) == found and len(pieces) > 1
    assert writer.generate("the cat", max_new_tokens=7, temperature=0, on_text=lambda piece: False) == pieces[0]
    assert "parameters" in repr(writer)
    with pytest.raises(ValueError, match="one prompt"):
        writer.generate(["a", "b"], on_text=print)
    with pytest.raises(ValueError, match="context"):
        writer.generate("the cat " * 60, overflow="error")
    assert writer.generate("the cat " * 60, max_new_tokens=3) == writer.generate("on " * 60 + "the cat " * 60, max_new_tokens=3)
    with pytest.raises(TypeError, match="TextGenerator"):
        writer.model.generate("the cat")


def test_a_folders_stop_strings_end_texts(folder, tmp_path):
    own = shutil.copytree(folder, tmp_path / "stops")
    whole = mh.TextGenerator(own).generate("the cat", max_new_tokens=12, temperature=0)
    first, second = whole[len(whole) // 2], whole[1:3]
    (own / "generation_config.json").write_text(json.dumps({"stop_strings": [first]}))
    assert mh._core.generation_defaults(own)["stop_strings"] == [first]
    writer = mh.TextGenerator(own)
    for texts, more in (([first], []), ([first, second], [second])):
        end = min(whole.index(text) + len(text) for text in texts)
        found = writer.generate("the cat", max_new_tokens=12, temperature=0, stop_strings=more)
        assert found != whole and found.startswith(whole[:end]) and whole.startswith(found)
        assert writer.generate(["the cat"], max_new_tokens=12, temperature=0, stop_strings=more) == [found]
    with pytest.raises(ValueError, match="stop_strings"):
        writer.model.generate([1], **mh._core.generation_defaults(own))
    with pytest.raises(TypeError, match="stop_strings must be a list, got the str 'the'"):  # not its letters
        writer.generate("the cat", stop_strings="the")
    with pytest.raises(TypeError, match="max_new_tokens, .*seed.* is out of range, or stop_tokens must be"):
        writer.generate("the cat", seed=-1)


def test_half_characters_wait_for_their_other_half():
    tokenizer = mh.Tokenizer.train_bpe(["plain"], vocab_size=260)  # a token per byte
    pieces = []
    stream = mh._core.TextStream(pieces.append, tokenizer)
    for token in tokenizer.encode("a€b" + "€")[:-1]:
        stream.write(token)
    assert pieces == ["a", "€", "b"]
    stream.finish()
    assert pieces[3:] == ["\ufffd"]


def test_a_tokenizer_of_another_model_is_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "mixed")
    mh.Tokenizer.train_bpe([" ".join(map(str, range(900)))], vocab_size=400).save(tmp_path / "mixed")
    with pytest.raises(mh.FormatError, match="the tokenizer has 346 tokens, the model expects 269; they do not match"):
        mh.TextGenerator(tmp_path / "mixed")


def test_chat_ends_with_the_turn(folder, monkeypatch):
    writer = mh.TextGenerator(folder)
    with pytest.raises(ValueError, match=r"no chat template; generate\(text\) continues a text"):
        writer.chat("hello")
    asked = {}

    def write(ids, options, on_text):
        asked.update(ids=ids, options=options)
        return ["hi"]

    monkeypatch.setattr(writer, "_write", write)
    render = writer.tokenizer.apply_chat_template
    monkeypatch.setattr(writer, "tokenizer", _WithTemplate(writer.tokenizer, render))
    monkeypatch.setattr("multihead.generate.turn_ends", lambda tokenizer: [9])
    assert writer.chat("hello", temperature=0.5) == "hi"
    assert asked["ids"] == [render([{"role": "user", "content": "hello"}], add_generation_prompt=True, chat_template=TEMPLATE)]
    assert asked["options"]["stop_tokens"][-1] == 9 and asked["options"]["temperature"] == 0.5


class _WithTemplate:
    def __init__(self, tokenizer, render):
        self.eos_id, self.chat_template, self._render = tokenizer.eos_id, TEMPLATE, render

    def apply_chat_template(self, messages, **options):
        return self._render(messages, chat_template=TEMPLATE, **options)


def test_automatic_loading(folder):
    assert isinstance(mh.AutoModel.from_pretrained(folder), mh.models.LanguageModel)
    assert mh.AutoTokenizer.from_pretrained(folder).encode("the cat") == mh.Tokenizer.load(folder).encode("the cat")


def test_modules_print_as_trees(folder):
    text = repr(mh.models.LanguageModel.load(folder))
    assert text.startswith("LanguageModel: ") and "[" in text and len(text.splitlines()) > 5

    class Mine(mh.nn.Module):
        def __init__(self):
            self.layers = [mh.nn.Linear(3, 2, rng=mh.Rng(i)) for i in range(3)]
            self.gain = mh.tensor([1.0], requires_grad=True)

    assert repr(Mine()) == "\n".join(
        ["Mine: 25 parameters", "  layers: 24", "    0-2 (Linear): 8 each", "      weight [2, 3]", "      bias [2]", "  gain [1]"]
    )


def test_configurations_print_fields_and_defaults():
    config = mh.models.LanguageModelConfig(vocab_size=10, norm="rms")
    assert repr(config) == "LanguageModelConfig(vocab_size=10, norm='rms')" and eval(repr(config), vars(mh.models)) == config
    assert "  norm = 'rms'    (default 'layer')" in str(config).splitlines() and "  num_layers = 4" in str(config).splitlines()
    optimizer = mh.optim.AdamW([mh.tensor([1.0], requires_grad=True)], lr=0.25)
    assert repr(optimizer) == "AdamW(lr=0.25, steps=0)"


def test_states_captures_and_points_print_what_they_hold(folder):
    model, ids = mh.models.LanguageModel.load(folder), np.array([[1, 2, 3]])
    state, capture, points = model.make_state(batch=1), mh.AttentionCapture(key_mass=True), mh.Points().keep("layers.0.resid_pre")
    assert [repr(x) for x in (capture, points)] == ["AttentionCapture(nothing yet)", "Points(kept: nothing yet)"]
    model(ids, state=state)
    with points:
        model(ids)
    mh.attention(*(np.ones((1, 2, n, 4), "f4") for n in (3, 5, 5)), capture=capture)
    assert repr(state) == f"DecodeState(1 layers, lengths [3], {state.nbytes:,} bytes)"
    assert repr(capture) == "AttentionCapture(weights: [1, 2, 3, 5], key_mass: [1, 2, 5])"
    assert repr(points) == "Points(kept: layers.0.resid_pre)"


def test_what_stands_around_a_model_prints_what_it_is(folder, tmp_path):
    tokenizer = mh.Tokenizer.load(folder)
    encoding = tokenizer.encoding("the cat sat on the mat and so on")
    assert repr(encoding) == f"Encoding({len(encoding)} tokens: {' '.join(encoding.tokens[:8])} …)"
    packed = mh.models.LanguageModel.load(folder, weights="q4")
    assert repr(packed).splitlines()[0].endswith(" parameters, and matrices packed as q4")
    assert repr(mh.models.Generator(packed)) == "Generator(0 running, 0 waiting, 0 bytes)"
    config = mh.models.EncoderConfig(vocab_size=tokenizer.vocab_size, context=16, num_layers=1, num_heads=2, embed_dim=8, ffn_dim=8,
                                     head="classification", labels=["bad", "good"], num_labels=2)  # fmt: skip
    mh.models.Encoder(config, rng=mh.Rng(1)).save(tmp_path / "classifier")
    tokenizer.save(tmp_path / "classifier")
    assert repr(mh.embed.TextClassifier.load(tmp_path / "classifier")) == "TextClassifier(bad, good)"
    assert repr(mh.CrossEncoder(tmp_path / "classifier")) == "CrossEncoder(2 labels, 16 tokens)"


def test_schedules_are_objects():
    schedule = mh.optim.Schedule("cosine", lr=2.0, warmup_steps=2, total_steps=10)
    expected = [mh.optim.learning_rate(i, kind="cosine", lr=2.0, warmup_steps=2, total_steps=10) for i in range(12)]
    np.testing.assert_array_equal([schedule.at(i) for i in range(12)], expected)
    assert schedule == mh.optim.Schedule("cosine", 2.0, 2, 10) and schedule.at(1) == 2.0
    with pytest.raises(ValueError, match="total_steps"):
        mh.optim.Schedule("cosine", lr=1.0)
    for wrong in (dict(kind="constant", final_ratio=0.1), dict(kind="cosine", total_steps=9, decay_share=0.1)):
        with pytest.raises(ValueError, match=f"{list(wrong)[-1]} has no effect on {wrong['kind']}, only on"):
            mh.optim.Schedule(**wrong)
