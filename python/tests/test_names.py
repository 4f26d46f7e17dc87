"""Python has what C++ has: every public class and function of the headers by its name, or a reason why not."""

import importlib
import pathlib
import re

import pytest

import multihead as mh

HEADERS = pathlib.Path(__file__).parents[2] / "multihead"
FOLDERS = ["ops", "nn", "models", "optim", "io", "distributed", "text", "generate", "embed", "look", "train", "autograd"]

# Options structs are keyword arguments, enums are strings, and what a call returns in a struct is a tuple or a dict.
KEYWORDS = {
    "AttentionCall", "AttentionOptions", "AttentionShape", "PackedHeads", "LinearOptions", "CrossEntropyOptions",
    "MultiHeadAttentionOptions", "StackOptions", "StackCall", "FeedForwardOptions", "ExpertsOptions", "NormOptions", "LayerCall",
    "TransformerLayerOptions", "TransformerOptions", "DecodeStateOptions", "LanguageModelCall", "LanguageModelState",
    "AdamOptions", "AdamWOptions", "SgdOptions", "PruneOptions", "ReadOptions", "SplitOptions", "SpecialTokens",
    "CharacterOptions", "BpeOptions", "WordPieceOptions", "UnigramOptions", "EncodeOptions", "DecodeOptions", "BeamOptions", "GenerateOptions", "GeneratorOptions",
    "RelativeBuckets", "PointPart", "SamplingOptions", "TranslateOptions", "DoctorOptions", "EvaluateOptions", "RunRequest", "LanguageModelRun",
    "Seq2SeqRun", "ClassifierRun", "TaggerRun", "ImageClassifierRun", "ImageClassifierSettings", "EmbedderRun", "RerankerRun", "MaskedLmRun", "EncoderSettings", "ClassifierSettings", "TaggerSettings", "EmbedderSettings",
    "RerankerSettings",
    "MaskedLmSettings", "LanguageModelSettings", "Seq2SeqSettings", "TrainingSettings", "TokenBatch",
    "CheckpointContents", "ClassifyOptions", "MergeOptions", "EncodeTextOptions", "EntityOptions", "SpladePooling", "TokenRows", "BiasFlags", "Diagonal", "ConvolutionOptions", "TriangleOptions", "LinearAttentionOptions", "SafetensorsLimits", "LoopOptions", "ProgressOptions", "LengthChoice",
}  # fmt: skip
STRINGS = {
    "Similarity", "ProblemType", "EmptyRow", "Layout", "Profile", "Reduction", "RotaryLayout", "NormKind", "SinusoidLayout", "Positions",
    "Aggregation", "Block", "EncoderHead", "PoolerActivation", "Pooling", "ScheduleKind", "Precision", "OnDamage", "Overflow", "Align", "Activation", "CaptureStage", "LinearRule", "TokenizerChoice", "RankingLoss",
    "IndexKind", "TextTask", "ProblemType", "EmptyRow", "Layout", "Profile", "Reduction", "RotaryLayout", "NormKind", "SinusoidLayout", "Positions",
    "Aggregation", "Block", "EncoderHead", "PoolerActivation", "Pooling", "ScheduleKind", "Precision", "OnDamage", "Overflow", "Align", "Activation", "CaptureStage", "LinearRule", "TokenizerChoice",
}  # fmt: skip
RESULTS = {
    "AddNorm", "Entity", "Offsets", "MaskGuess", "Match", "TextPair", "AttentionPart", "AttentionExplanation", "AttentionProfile", "CheckpointInfo", "BleuScore",
    "ParallelText", "TextSplit", "Hypothesis", "Translation", "CheckResult", "TextLoss", "PairLoss",
    "LanguageModelSummary", "Seq2SeqSummary", "RunSummary", "ClassifierSummary", "TaggerSummary", "ImageClassifierSummary", "ImageScore", "EmbedderSummary", "RerankerSummary", "MaskedLmSummary", "LabelScore", "EntityScore",
    "RetrievalScore", "RankedScore", "MaskedLoss",
    "JobReport", "StepReport", "EvalReport", "NamedTensor",
}  # fmt: skip
ELSEWHERE = {  # C++ name: what does it in Python
    "Image": "embed.ImageClassifier.read",
    "ImageScaling": "embed.ImageClassifier",
    "read_image": "embed.ImageClassifier.read",
    "resized": "embed.ImageClassifier.read",
    "copy_planes": "embed.ImageClassifier.read",
    "read_scaling": "embed.ImageClassifier.load",
    "scale_pixels": "embed.ImageClassifier.pixels",
    "list_images": "train_image_classifier",
    "LabelledFiles": "train_image_classifier",
    "choose_c": "train.fit_linear_head",
    "ChosenC": "train.fit_linear_head",
    "LinearHead": "train.fit_linear_head",
    "LinearHeadOptions": "train.fit_linear_head",
    "count_characters": "text.Tokenizer.encoding",
    "similarities": "embed.SentenceEncoder.similarity",
    "Experts": "models.EncoderConfig",
    "Truncation": "text.Tokenizer.encoding",  # as_file=
    "Padding": "text.Tokenizer.pad",
    "logit_lens": "lens.logit_lens",
    "most_probable": "lens.logit_lens",
    "ablate_heads": "lens.ablate_heads",
    "integrated_gradients": "lens.integrated_gradients",
    "Guess": "lens.logit_lens",
    "Shares": "lens.integrated_gradients",
    "look": "attend",
    "Look": "attend",
    "Neurons": "attend",
    "AttentionRun": "attend",
    "Prediction": "attend",
    "stored_bytes": "attend",
    "cost_of_measures": "attend",
    "bits_for": "attend",
    "to_html": "attend",
    "head_dim": "models.Seq2SeqConfig",
    "heeded": "models.LanguageModelConfig",
    "PrunedHeads": "models.prune",
    "Pruning": "models.prune",
    "KeptHeads": "models.prune",
    "kept_heads": "models.prune",
    "without_heads": "models.prune",
    "add_importance": "lens.head_importance",
    "Importance": "lens.head_importance",
    "start_from": "train_language_model",  # init=
    "check_named_tokenizer": "train_language_model",  # tokenizer=
    "is_sample": "train_language_model",  # eval_windows=
    "samples_of": "train_language_model",  # eval_windows=
    "refuse_other_sizes": "train_language_model",
    "is_worse_than_start": "train_language_model",  # worse_than_start of its result
    "merit": "train_language_model",  # best=
    "check_best": "train_language_model",  # best=
    "check_length": "models.LanguageModel.generate",  # max_new_tokens=
    "copy_weights": "train_language_model",
    "PointScope": "Points",  # a with block
    "generate": "models.LanguageModel.generate",
    "turn_ends": "models.LanguageModel.generate",  # eos_ids= of a chat template
    "save_with_tokenizer": "models.LanguageModel.save",  # tokenizer=
    "save_with_defaults": "models.Seq2Seq.save",
    "balanced_weights": "train_classifier",  # balanced=
    "JudgedPairs": "train_embedder",
    "read_judged": "train_embedder",
    "LoadedModel": "TextGenerator",
    "load_with_tokenizer": "TextGenerator",
    "check_vocabulary": "TextGenerator",
    "LoadedTranslator": "models.Translator",
    "load_translator": "models.Translator.load",
    "prompt_lookup": "models.LanguageModel.generate",  # draft="lookup"
    "draft_model": "models.LanguageModel.generate",  # draft=
    "Draft": "models.LanguageModel.generate",
    "beam_search": "models.Seq2Seq.beam_search",
    "translate": "models.Translator.translate",
    "PackedSeq2Seq": "models.Seq2Seq.beam_search",  # weight_dtype=
    "PackedLinear": "models.LanguageModel.pack_weights",
    "pack_matrices": "models.LanguageModel.pack_weights",
    "save_language_model": "models.LanguageModel.save",
    "load_language_model": "models.LanguageModel.load",
    "is_gguf": "models.LanguageModel.load",
    "is_gguf_file": "models.LanguageModel.load",
    "GgufFile": "io.load_gguf",
    "GgufTensor": "io.load_gguf",
    "BlockFormat": "io.load_gguf",
    "BlockGroup": "io.load_gguf",
    "block_formats": "io.load_gguf",
    "writable_gguf_type": "models.LanguageModel.save_gguf",
    "write_gguf": "models.LanguageModel.save_gguf",
    "save_gguf": "models.LanguageModel.save_gguf",
    "load_gguf": "io.load_gguf",
    "GgufContents": "models.LanguageModel.save_gguf",
    "gguf_vocabulary": "models.LanguageModel.save_gguf",
    "loses_normalizer_in_gguf": "models.LanguageModel.save_gguf",
    "stored_views": "models.LanguageModel.state_dict",
    "save_encoder": "models.Encoder.save",
    "load_encoder": "models.Encoder.load",
    "save_image_encoder": "models.ImageEncoder.save",
    "load_image_encoder": "models.ImageEncoder.load",
    "VectorStep": "embed.SentenceEncoder",
    "VectorKind": "embed.SentenceEncoder",  # of three classes
    "vector_kind": "embed.SentenceEncoder",
    "Prompts": "embed.SentenceEncoder.encode_query",
    "QueryExpansion": "embed.MultiVectorEncoder.encode_query",
    "SparseRows": "embed.SparseVectors",
    "MultiVectors": "embed.MultiVectorEncoder.encode",
    "save_npy": "embed.SentenceEncoder",  # numpy.save
    "NpyWriter": "embed.SentenceEncoder",
    "load_npy": "embed.SentenceEncoder",
    "save_seq2seq": "models.Seq2Seq.save",
    "load_seq2seq": "models.Seq2Seq.load",
    "language_model_tensors": "models.LanguageModel.state_dict",
    "seq2seq_tensors": "models.Seq2Seq.state_dict",
    "PairTokenizers": "models.Translator.source_tokenizer",
    "load_pair_tokenizers": "models.Translator.load",
    "make_decode_state": "nn.MultiHeadAttention.make_state",
    "decode_state_bytes": "models.LanguageModel.state_bytes",
    "ring_capacity": "models.LanguageModel.make_state",
    "plan_generate": "models.LanguageModel.state_bytes",
    "KvCache": "models.DecodeState.layers",
    "OwnAttention": "nn.Attention",
    "OwnAttentionPart": "nn.Attention",
    "OwnCache": "nn.Attention.caches",
    "OwnCacheSpec": "nn.Attention.caches",
    "register_attention": "nn.Attention",  # a subclass is known from when it is defined
    "check_plain_attention": "nn.Attention",
    "other_attention": "nn.Attention",
    "LatentAttention": "models.LanguageModelConfig.latent_dim",
    "LatentOptions": "models.LanguageModelConfig.latent_dim",
    "has_routes": "embed.SentenceEncoder.encode",
    "TaskAdapters": "embed.SentenceEncoder.encode",
    "read_task_adapters": "embed.SentenceEncoder.encode",
    "to_int8_rows": "models.LanguageModel.make_state",  # dtype="int8"
    "from_int8_rows": "models.LanguageModel.make_state",
    "attention_int8": "models.LanguageModel.make_state",
    "PrefixFolder": "models.Generator",  # prefix_folder=
    "SavedPrompt": "models.Generator",
    "save_prompt": "models.Generator",
    "saved_prompt": "models.Generator",
    "load_prompt": "models.Generator",
    "model_checksum": "models.Generator",
    "causal_offset": "causal",  # align= takes an offset or one per sample
    "parameters": "nn.Module.parameters",
    "named_parameters": "nn.Module.named_parameters",
    "zero_grad": "nn.Module.zero_grad",
    "load_parameters": "nn.Module.load_state_dict",
    "to": "nn.Linear.to",
    "clone": "nn.Linear.clone",
    "parameter_count": "nn.Module.parameter_count",
    "ParameterList": "optim.Adam",
    "Schedule": "optim.learning_rate",
    "profile_name": "attention_profile",
    "parse_profile": "attention_profile",
    "ScoreMod": "score_mod",
    "MaskPart": "Mask",
    "Observer": "train.train_language_model",  # callback=
    "ProgressPrinter": "train.train_language_model",  # progress=
    "SafetensorsFile": "io.load_safetensors",
    "encode_all": "text.Tokenizer.encode",
    "ChatTemplate": "text.Tokenizer.apply_chat_template",
    "ChatMessage": "text.Tokenizer.apply_chat_template",
    "Gradients": "Tape",
    "AttentionRowsOptions": "attention_rows",
    "CustomForward": "custom_op",
    "CustomBackward": "custom_op",
    "index": "take",  # x[...]
    "is_recording": "Tape",
    "Autocast": "autocast",
    "world": "distributed.group",
    "launch": "distributed.group",
    "single": "distributed.group",
    "leave_world": "distributed.group",
    "abort_world": "distributed.group",
    "set_world_failed": "distributed.group",
    "threads_per_rank": "distributed.group",
    "Launch": "distributed.group",
    "TextModel": "embed.SentenceEncoder",
    "pooled": "embed.SentenceEncoder",
    "normalized_rows": "embed.SentenceEncoder",
    "mixed": "embed.SentenceEncoder",  # WeightedLayerPooling of a folder
    "LayerMix": "embed.SentenceEncoder",
    "Adapter": "models.LanguageModel.load_adapter",
    "AdapterOptions": "train_language_model",  # lora_rank=, lora_alpha=, lora_targets=
    "LoraSettings": "train_language_model",
    "LoraTask": "train_language_model",
    "adapter_options": "train_language_model",
    "load_adapter": "models.LanguageModel.load_adapter",
    "is_adapter_folder": "models.LanguageModel.load",
    "prompt_logprobs": "models.LanguageModel.logprobs",
    "base_of_adapter": "models.LanguageModel.load",
    "merge_adapter": "models.LanguageModel.load",
    "load_decoder": "models.LanguageModel.load",  # head=False
    "has_encoder": "AutoModel",
    "encoder_tensors": "models.Encoder.state_dict",
    "rates_of": "train_classifier",
    "LabelledTexts": "train_classifier",
    "read_labelled": "train_classifier",
    "distinct_labels": "train_classifier",
    "read_texts": "train_classifier",
    "parse_texts": "train_classifier",
    "TableFormat": "train_classifier",
    "Column": "train_classifier",
    "TableLayout": "train_classifier",
    "Table": "train_classifier",
    "format_of": "train_classifier",
    "read_table": "train_classifier",
    "parse_table": "train_classifier",
    "shared_rows": "train_classifier",
    "read_corpus": "train_masked_lm",
    "check_plain": "train_masked_lm",
    "check_lines": "train_masked_lm",
    "Dialogue": "train_language_model",
    "Dialogues": "train_language_model",
    "read_dialogues": "train_language_model",
    "holds_dialogues": "train_language_model",
    "DialogueBatch": "train_language_model",
    "dialogue_batch": "train_language_model",
    "read_dialogue_data": "train_language_model",
}
INTERNAL = {  # reason: names
    "tables behind strings and properties": "enum_words ConfigField FieldRange Stored config_fields model_fields add_model_fields",
    "only C++ needs a type for it": "ImageScaling Error Dual ScoreIndex ScoreReads MaskBlock Visitor Module CacheUpdate "
    "WeightPart WeightRule WeightMap ImportOptions ExtraTensor PackedState BusyFlag",
    "how folders of Hugging Face are read and written": "family_of config_to_json whole_config_to_json config_from_json "
    "weight_map matrix_weights check_size load_weights identity_map export_weights import_weights check_weights read_weights resolved "
    "seq2seq_config_from_json encoder_config_from_json image_encoder_config_from_json sequence_length open_weights repeated_tensor constant_tensor "
    "tied_parameters tokenizer_folder encoder_head",
    "what generation_config.json asks of the verbs": "GenerationConfig generation_config_from_json generation_keys "
    "load_generation_config generation_json saved_defaults apply apply_rules check_rules StopStrings TextStream is_blank",
    "files below checkpoints": "checkpoint_path join not_a_file IntegerRange NumberRange ConfigReader "
    "ManifestEntry Manifest DirectoryWriter write_directory_atomically remove_directory_atomically "
    "read_manifest verify_directory_sizes "
    "verify_directory TensorInfo SafetensorsHeader parse_safetensors_header write_safetensors save_json load_json "
    "path_to_json path_from_json "
    "FolderLock RunFolder Staging random_id is_id write_staged find_leftovers remove_leftovers foreign_directory "
    "entry_of manifest_text is_unchanged foreign_checkpoints write_contents Look foreign_files replace_files "
    "remove_files adopt_files save_files write_model lock_folder refuse_foreign check_complete finish_files holds_other publish_staged is_read_from_folders "
    "model_folder_files",
    "what pages with a laboratory need": "NamedTokens answer",
    "Python has its own": "complete_utf8 each_line TokenView TokenFile TokenFiles TokenPart TextPieces TokenFileWriter encode_file duration_text count_text "
    "uniform_parameter normal_parameter constant_parameter replace_parameters",
    "steps inside a call": "PackedBlocks rotary_at ListCall TokenList TokenPass sum_to check name parse_schedule Candidate candidates sample append record "
    "record_many gradient_slots encode_source encode_target language_token",
    "the parts a run is made of": "note_with_init text_of Choice Field choice assign to_json assign_all parse_number LanguageModelData "
    "prepare_language_model_data map_language_model_data LanguageModelTask Task Ending Progress progress_from_json "
    "open_run TrainLoop MetricsWriter TokenPair PairTokens encode_pairs PairBatch make_pair_batch PairBatchOptions "
    "PairBatches run_task train_task dropout_rng least_model make_optimizer pair_tokenizer_files Seq2SeqData prepare_seq2seq_data "
    "Seq2SeqTask average_checkpoints fields identity identity_of language_model_presets seq2seq_presets parse_integer "
    "OptimizerChoice add_report_fields dtype_of_products "
    "add_training_fields check_training check_least check_training_memory schedule_of StopSignals WindowOrder "
    "gather_windows WindowBatch permuted Seq2SeqStep "
    "ClassifierData ClassifierTask prepare_classifier_data TaggedTexts TaggerData TaggerTask prepare_tagger_data EmbedderData EmbedderTask TextPairs "
    "matryoshka_sizes RankedPairs ranked_pairs RerankerData RerankerTask seconds_of choose_steps time_of model_card "
    "encode_text_pairs MaskedLmData MaskedLmTask prepare_masked_lm_data batch_rows encode_pair_texts encode_texts "
    "encoder_from freeze_all_but save_encoder_files token_rows add_encoder_fields check_encoder length_of with_head "
    "with_weights trained_parameters score_labels score_logits score_rows ImageData ImageClassifierTask read_image_data image_classifier_presets Targets read_targets target_rows head_loss problem_of "
    "train_head save_sentence_files write_module_folders remove_module_folders spread_rows masked_lm_presets MaskOptions MaskedText Masker "
    "ShardTree DataParallel ContextParallel shards_of terms_of check_request is_given refuse_unused check_context share_tokenizer check_alike "
    "folder_of tokenizer_source tokenizer_of share_start RunOf ScoredSummary AnyRun Kind kind_of kinds ModelTask "
    "activation_bytes set_fine_tuning set_new choose_length choose_rate recipe_of joined warn_of_unused "
    "TaskRun Files read_files data_id current_name measure_rows checksum_of_columns column_of DataSums sums_of_columns "
    "TrainingMemory training_memory broadcast_weights Sharing measure_batches on_any",
    "a RuntimeError": "GroupError",
    "what jobs are made of": "Message all_gather bytes_of share_begin run_hosted_group check_hosted MpiFunctions",
    "C++ only so far": "LabelFigures LabelReport LabelSetReport report_label_sets mean_squared_error labels_in is_label_list label_ids "
    "is_text_classifier has_linear_head pair_prompt minimize LbfgsResult LbfgsOptions report_labels figures_of RankingScore pearson spearman Span SpannedText "
    "read_spans parse_spans without_spaces check_spans ContextScope checkpoint TokenLogprob TokenLogprobs token_logprobs ToolStyle tool_style tool_messages "
    "call_prefix call_language text_or_call_language value_or_call_language ToolCallParser",
    "generate(json_schema=, regex=, grammar=)": "Constraint ConstraintState TokenSet TokenTrie TokenTries token_tries Frame "
    "Stacks Language JsonPart Walker ByteDfa regex_language grammar_language json_schema_language json_parts_language",
}

MEMBERS = {  # C++ member: what does it in Python
    "DecodeState.bytes": "models.DecodeState.nbytes",
    "DecodeState.make_room": "models.DecodeState.room",  # calls make it
    "Linear.packed": "models.LanguageModel.pack_weights",
    "Linear.dtype": "nn.Linear.weight",
    "Embedding.packed": "models.LanguageModel.pack_weights",
    "Embedding.dtype": "nn.Embedding.weight",
    "MultiHeadAttention.in_proj_packed": "models.LanguageModel.pack_weights",
    "LanguageModel.head_packed": "models.LanguageModel.pack_weights",
    "LanguageModel.state_options": "models.LanguageModel.state_bytes",
    "LanguageModel.has_ring": "models.LanguageModel.make_state",
    "LanguageModel.embedding_norm": "models.LanguageModel.named_parameters",
    "MultiHeadAttention.options": "nn.MultiHeadAttention.scale",  # a property each
    "Norm.add": "add_layer_norm",
    "Norm.kind": "nn.Norm",  # arguments
    "Norm.eps": "nn.Norm",
    "Norm.factors": "nn.Norm.weight",
    "SinusoidalPositionalEncoding.embed_dim": "nn.SinusoidalPositionalEncoding",  # its repr and copies say these
    "SinusoidalPositionalEncoding.dropout_p": "nn.SinusoidalPositionalEncoding",
    "SinusoidalPositionalEncoding.layout": "nn.SinusoidalPositionalEncoding",
    "TransformerLayer.options": "nn.TransformerLayer",
    "TransformerLayer.own_attn": "models.LanguageModel",  # attention=
    "TransformerLayer.experts": "models.EncoderConfig",  # experts=
    "OwnAttentionCall.check_read": "models.LanguageModel",  # does it
    "TransformerLayer.has_feed_forward": "nn.TransformerLayer",
    "TransformerLayer.has_post_norms": "nn.TransformerLayer",
    "Encoder.logits_at": "models.Encoder.logits",
    "Encoder.masked_lm_logits": "models.Encoder.logits",
}

CLASS = re.compile(r"^(?:class|struct|enum class) (\w+)(?: final)?(?: :.*)? ?\{", re.M)
FUNCTION = re.compile(
    r"^(?!namespace|using|return|static|template|typedef|MH_)\w[\w:<>,&\* ]*? \**&?(\w+)\(", re.M
)


BODY = re.compile(r"^(?:class|struct) (\w+)(?: final)?(?: : [^{]*)? \{\n(.*?)^\};", re.M | re.S)
METHOD = re.compile(r"^  (?! |return|using|friend|explicit)(?:static |virtual )?[\w:<>,&\* ]*?[ \*&](\w+)\(", re.M)
FIELD = re.compile(r"^  (?!using|return|friend|mutable)[\w:]+(?:<[^;=]*>)? (\w+(?:, \w+)*)(?: = [^;]*)?;", re.M)


def public_members(header):
    for name, body in BODY.findall(header.read_text()):
        body = body.split("\n private:")[0]
        found = set(METHOD.findall(body)).union(*(fields.split(", ") for fields in FIELD.findall(body)))
        yield name, {m for m in found if not m.startswith("operator") and m not in (name, "visit", "visitor")}


def public_names(header):
    detail = r"^namespace (multihead::)?detail \{.*?^\}  // namespace (multihead::)?detail"
    text = re.sub(detail, "", header.read_text(), flags=re.M | re.S)
    return {n for n in CLASS.findall(text) + FUNCTION.findall(text) if not n.startswith(("operator", "MH_"))}


def in_python(dotted):
    parts = dotted.split(".")
    value = importlib.import_module(f"multihead.{parts[0]}") if len(parts) > 1 else mh
    for part in parts[1:] if len(parts) > 1 else parts:
        value = getattr(value, part)
    return value


PLACES = [mh] + [importlib.import_module(f"multihead.{n}") for n in ("nn", "embed", "models", "optim", "io", "distributed", "text", "train")]
REASONS = {name for names in INTERNAL.values() for name in names.split()}


@pytest.mark.parametrize(
    "name",
    "distributed embed estimators generate io lens models nn onnx optim serve text train view".split(),
)
def test_dir_lists_no_module_that_is_only_imported(name):
    if name == "estimators":
        pytest.importorskip("sklearn")
    module = importlib.import_module(f"multihead.{name}")
    assert sorted(dir(module)) == sorted(module.__all__)


@pytest.mark.skipif(not HEADERS.exists(), reason="the headers lie in a checkout")
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_public_name_of_cpp_is_in_python_or_has_a_reason(folder):
    missing = {}
    for header in sorted((HEADERS / folder).rglob("*.h")):
        if header.name.endswith("-inl.h"):
            continue
        for name in sorted(public_names(header)):
            known = name in KEYWORDS | STRINGS | RESULTS | REASONS or name in ELSEWHERE
            if not known and not any(hasattr(place, name) for place in PLACES):
                missing.setdefault(header.name, []).append(name)
    assert not missing, missing


NAMES_PAGE = HEADERS.parent / "docs" / "tutorials" / "names.md"


@pytest.mark.skipif(not NAMES_PAGE.exists(), reason="the page lies in a checkout")
def test_the_page_of_the_texts_names_tells_the_truth():
    page = NAMES_PAGE.read_text()
    headers = "".join(header.read_text() for header in HEADERS.rglob("*.h"))
    tables, code = page.split("```python")
    ours = "\n".join(row.split("|", 2)[2] for row in tables.splitlines() if row.startswith("|"))  # not the texts' column
    names = {*re.findall(r"\bmh\.((?:nn\.)?\w+)", ours), *("nn." + n for n in re.findall(r"\bnn\.([A-Z]\w+)\(", ours))}
    assert len(names) > 15
    for name in names:
        assert in_python(name), name
    for name in re.findall(r"(?:mh|nn)::([a-zA-Z]\w+)", ours):
        assert re.search(rf"\b{name}\b", headers), name
    exec(compile(code.split("```")[0], str(NAMES_PAGE), "exec"), {})


@pytest.mark.skipif(not HEADERS.exists(), reason="the headers lie in a checkout")
@pytest.mark.parametrize("folder", ["nn", "models"])
def test_every_public_member_of_a_class_is_in_python_or_has_a_reason(folder):
    missing, classes = [], 0
    for header in sorted((HEADERS / folder).rglob("*.h")):
        for name, members in public_members(header):
            ours = next((getattr(place, name) for place in PLACES if hasattr(place, name)), None)
            if not isinstance(ours, type):
                continue
            classes += 1
            missing += [f"{name}.{m}" for m in sorted(members) if not hasattr(ours, m) and f"{name}.{m}" not in MEMBERS]
    assert classes >= 4 and not missing, missing


@pytest.mark.parametrize("name", sorted(MEMBERS.values()))
def test_what_another_member_does_is_there(name):
    assert in_python(name) is not None


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_is_elsewhere_is_there(name):
    assert in_python(ELSEWHERE[name]) is not None


def test_the_source_distribution_leaves_out_folders_of_the_top_alone():
    text = (HEADERS.parent / "pyproject.toml").read_text(encoding="utf-8")
    (patterns,) = re.findall(r"^sdist\.exclude = \[(.*)\]", text, re.MULTILINE)
    for pattern in re.findall(r'"([^"]*)"', patterns):  # "bench" is cli/bench, too, without which the extension does not load
        assert pattern.startswith("/"), pattern
