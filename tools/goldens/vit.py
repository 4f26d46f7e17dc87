"""Tiny random vision Transformers as transformers writes them, with images and outputs: tests/data/images/.

    python3 tools/goldens/vit.py

Needs PyPI torch, transformers, safetensors, pillow.
"""
import json
import pathlib

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from transformers import ViTConfig, ViTForImageClassification, ViTModel

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "images"
SIZES = dict(image_size=12, patch_size=4, hidden_size=20, intermediate_size=33, num_hidden_layers=2, num_attention_heads=4,
             initializer_range=0.3)
PROCESSOR = dict(do_normalize=True, do_rescale=True, do_resize=True, image_mean=[0.5, 0.4, 0.3], image_std=[0.5, 0.25, 0.2],
                 image_processor_type="ViTImageProcessor", resample=2, rescale_factor=1 / 255, size=dict(height=12, width=12))


def models():
    yield "vit", ViTModel(ViTConfig(**SIZES, num_channels=2, qkv_bias=False, hidden_act="relu"))
    yield "vit_classifier", ViTForImageClassification(ViTConfig(**SIZES, id2label={0: "cat", 1: "dog", 2: "a third"}))


for name, model in models():
    torch.manual_seed(len(name))
    for parameter in model.parameters():  # biases and norms as trained models have them, not 0 and 1
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    folder = DATA / name
    model.eval().save_pretrained(folder)
    channels = model.config.num_channels
    images = torch.randint(0, 256, (3, channels, 12, 12)).to(torch.float32)
    mean, std = (torch.tensor(PROCESSOR[key][:channels]).reshape(-1, 1, 1) for key in ("image_mean", "image_std"))
    pixels = (images / 255 - mean) / std
    with torch.no_grad():
        out = model(pixels)
    expected = dict(images=images, pixels=pixels)
    if name == "vit":
        expected |= dict(features=out.last_hidden_state.contiguous(), pooled=out.pooler_output)
    else:
        expected |= dict(logits=out.logits)
        (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR, indent=2) + "\n")
        array = images.numpy().astype(np.uint8).transpose(0, 2, 3, 1)
        Image.fromarray(array[0]).save(DATA / "first.png")
        Image.fromarray(array[1]).save(DATA / "second.ppm")
        Image.fromarray(array[0][:8]).save(DATA / "small.png")
    save_file(expected, folder / "expected.safetensors")
