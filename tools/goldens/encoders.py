"""Tiny random encoders as transformers writes them, with their outputs: tests/data/encoders/.

    python3 tools/goldens/encoders.py [NAME...]

Needs PyPI torch, transformers, safetensors.
"""
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import (AlbertConfig, AlbertForMaskedLM, AlbertForSequenceClassification, AlbertForTokenClassification,
                          AlbertModel, BertConfig, BertForMaskedLM, BertForSequenceClassification, BertForTokenClassification, BertModel,
                          CamembertConfig, CamembertModel, DebertaV2Config, DebertaV2ForMaskedLM,
                          DebertaV2ForSequenceClassification, DistilBertConfig, DistilBertForMaskedLM,
                          DistilBertForSequenceClassification, DistilBertModel, ElectraConfig, ElectraForSequenceClassification,
                          ElectraModel, EsmConfig, EsmForMaskedLM, GteConfig, GteForMaskedLM, GteForSequenceClassification,
                          JinaEmbeddingsV3Config, JinaEmbeddingsV3ForSequenceClassification, JinaEmbeddingsV3Model, ModernBertConfig, ModernBertForMaskedLM, ModernBertForSequenceClassification,
                          ModernBertForTokenClassification, ModernBertModel, MPNetConfig, MPNetForMaskedLM, MPNetForSequenceClassification, MPNetModel, NomicBertConfig, NomicBertForMaskedLM, NomicBertForSequenceClassification, NomicBertModel, RobertaConfig, RobertaForMaskedLM, RobertaForSequenceClassification, RobertaModel,
                          T5Config, T5EncoderModel, T5ForTokenClassification, XLMRobertaConfig, XLMRobertaForTokenClassification)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import remote_families  # noqa: E402

DISENTANGLED = dict(relative_attention=True, share_att_key=True, norm_rel_ebd="layer_norm", pos_att_type="p2c|c2p", position_buckets=6,
                    max_relative_positions=-1, position_biased_input=False)

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "encoders"
LENGTHS = [7, 1, 11, 4]

SIZES = dict(vocab_size=37, hidden_size=20, intermediate_size=33, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=19, initializer_range=0.3)
DISTIL = dict(vocab_size=37, dim=20, hidden_dim=33, n_layers=2, n_heads=4, max_position_embeddings=19, initializer_range=0.3)

# Windows of 3 on either side in the layers 1 and 2.
MODERN = dict(vocab_size=37, hidden_size=24, intermediate_size=33, num_hidden_layers=4, num_attention_heads=4,
              max_position_embeddings=19, initializer_range=0.3, local_attention=6, pad_token_id=0, bos_token_id=1,
              eos_token_id=2, cls_token_id=1, sep_token_id=2)

ALBERT = dict(SIZES, embedding_size=12, num_hidden_layers=3)
T5 = dict(vocab_size=37, d_model=20, d_kv=6, d_ff=33, num_layers=2, num_heads=3, relative_attention_num_buckets=8,
          relative_attention_max_distance=9, pad_token_id=0, eos_token_id=1)

ROTARY = dict(SIZES, hidden_size=24, intermediate_size=31)  # heads of an even size


def models():
    yield "bert", BertModel(BertConfig(**SIZES))
    yield "bert_masked_lm", BertForMaskedLM(BertConfig(**SIZES, hidden_act="relu"))
    yield "bert_classifier", BertForSequenceClassification(BertConfig(**SIZES, num_labels=3))
    yield "bert_tokens", BertForTokenClassification(BertConfig(**SIZES, id2label={0: "O", 1: "B-NAME", 2: "I-NAME"}))
    yield "roberta", RobertaModel(RobertaConfig(**SIZES, type_vocab_size=1))
    yield "roberta_masked_lm", RobertaForMaskedLM(RobertaConfig(**SIZES))
    yield "roberta_classifier", RobertaForSequenceClassification(RobertaConfig(**SIZES, num_labels=3))
    yield "xlm_roberta_tokens", XLMRobertaForTokenClassification(XLMRobertaConfig(**SIZES, num_labels=4))
    yield "camembert", CamembertModel(CamembertConfig(**SIZES, type_vocab_size=1))
    yield "mpnet", MPNetModel(MPNetConfig(**SIZES | dict(max_position_embeddings=302)))
    yield "mpnet_masked_lm", MPNetForMaskedLM(MPNetConfig(**SIZES))
    yield "mpnet_classifier", MPNetForSequenceClassification(MPNetConfig(**SIZES, num_labels=3))
    yield "distilbert", DistilBertModel(DistilBertConfig(**DISTIL))
    yield "distilbert_masked_lm", DistilBertForMaskedLM(DistilBertConfig(**DISTIL))
    yield "distilbert_classifier", DistilBertForSequenceClassification(DistilBertConfig(**DISTIL, num_labels=3))
    yield "electra", ElectraModel(ElectraConfig(**SIZES, embedding_size=12))
    yield "electra_classifier", ElectraForSequenceClassification(ElectraConfig(**SIZES, embedding_size=20, num_labels=3))
    yield "modernbert", ModernBertModel(ModernBertConfig(**MODERN))
    yield "modernbert_masked_lm", ModernBertForMaskedLM(ModernBertConfig(**MODERN))
    yield "modernbert_classifier", ModernBertForSequenceClassification(
        ModernBertConfig(**MODERN, classifier_pooling="mean", num_labels=3))
    yield "modernbert_tokens", ModernBertForTokenClassification(ModernBertConfig(**MODERN, num_labels=4))
    yield "albert", AlbertModel(AlbertConfig(**ALBERT))
    yield "albert_masked_lm", AlbertForMaskedLM(AlbertConfig(**ALBERT))
    yield "albert_classifier", AlbertForSequenceClassification(AlbertConfig(**ALBERT, num_labels=3))
    yield "albert_tokens", AlbertForTokenClassification(AlbertConfig(**ALBERT, num_labels=4))
    yield "t5", T5EncoderModel(T5Config(**T5))
    yield "t5_gated", T5EncoderModel(T5Config(**T5, feed_forward_proj="gated-gelu"))
    yield "nomic_bert", NomicBertModel(NomicBertConfig(**ROTARY))
    yield "nomic_bert_masked_lm", NomicBertForMaskedLM(NomicBertConfig(**ROTARY))
    yield "nomic_bert_classifier", NomicBertForSequenceClassification(NomicBertConfig(**ROTARY, num_labels=3))
    yield "gte_masked_lm", GteForMaskedLM(GteConfig(**ROTARY))
    yield "gte_classifier", GteForSequenceClassification(GteConfig(
        **ROTARY, type_vocab_size=0, num_labels=3, rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 1.5}))
    # One of the tokens masks, and some sequences have it.
    yield "esm_masked_lm", EsmForMaskedLM(EsmConfig(**ROTARY, position_embedding_type="rotary", token_dropout=True, mask_token_id=5,
                                                    pad_token_id=0, emb_layer_norm_before=False))
    yield "jina_embeddings_v3", JinaEmbeddingsV3Model(JinaEmbeddingsV3Config(**ROTARY))
    yield "jina_embeddings_v3_classifier", JinaEmbeddingsV3ForSequenceClassification(JinaEmbeddingsV3Config(**ROTARY, num_labels=3))
    yield "deberta_v2_masked_lm", DebertaV2ForMaskedLM(DebertaV2Config(**SIZES, **DISENTANGLED))
    yield "deberta_v2_classifier", DebertaV2ForSequenceClassification(DebertaV2Config(**SIZES, **DISENTANGLED, num_labels=3))
    yield "jina_bert", remote_families.JinaBertModel(remote_families.JinaBertConfig(**SIZES, feed_forward_type="reglu"))
    yield "jina_bert_masked_lm", remote_families.JinaBertForMaskedLM(remote_families.JinaBertConfig(**SIZES | dict(num_attention_heads=5)))
    yield "nomic_bert_moe", remote_families.NomicBertModel(remote_families.NomicBertConfig(
        vocab_size=37, n_embd=24, n_inner=33, n_layer=4, n_head=4, n_positions=19, initializer_range=0.3, num_experts=3, moe_top_k=2,
        type_vocab_size=2))
    yield "t5_tokens", T5ForTokenClassification(T5Config(**T5, num_labels=4))


def write(name, model):
    torch.manual_seed(len(name))
    for parameter in model.parameters():  # biases and norms as trained models have them, not 0 and 1
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    folder = DATA / name
    model.eval().save_pretrained(folder)
    has_types = getattr(model.config, "type_vocab_size", 1) > 1
    tokens, types, features, logits, pooled = [], [], [], [], []
    for length in LENGTHS + [300] * (name == "mpnet"):  # beyond the last bucket  # one at a time: no padding, no mask
        ids = torch.randint(2, 37, (1, length))
        kinds = torch.randint(0, 2, (1, length)) if has_types else torch.zeros_like(ids)
        more = {"token_type_ids": kinds} if has_types else {}
        with torch.no_grad():
            out = model(ids, output_hidden_states=True, **more)
        tokens.append(ids[0])
        types.append(kinds[0])
        features.append(out.hidden_states[-1][0])
        if "logits" in out:
            logits.append(out.logits[0] if out.logits.dim() == 3 else out.logits)
        if out.get("pooler_output") is not None:
            pooled.append(out.pooler_output)
    expected = {"tokens": torch.cat(tokens), "types": torch.cat(types), "lengths": torch.tensor([len(ids) for ids in tokens]),
                "features": torch.cat(features)}
    if logits:
        expected["logits"] = torch.cat(logits)
    if pooled:
        expected["pooled"] = torch.cat(pooled)
    save_file({name: tensor.contiguous() for name, tensor in expected.items()}, folder / "expected.safetensors")


if __name__ == "__main__":
    torch.manual_seed(0)
    for name, model in models():
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            write(name, model)
