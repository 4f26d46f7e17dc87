"""Vision Transformers beside transformers', and through AutoModel."""

import pathlib

import numpy as np
import pytest

import multihead as mh

DATA = pathlib.Path(__file__).parents[2] / "tests" / "data" / "images"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the fixtures lie in a checkout")


def test_auto_model_loads_images_encoders():
    model = mh.AutoModel.from_pretrained(DATA / "vit")
    assert isinstance(model, mh.models.ImageEncoder)
    expected = mh.load_safetensors(DATA / "vit" / "expected.safetensors")
    np.testing.assert_allclose(model.features(np.asarray(expected["pixels"])), expected["features"], atol=1e-5)
    np.testing.assert_allclose(model.pooled(expected["pixels"]), expected["pooled"], atol=1e-5)


def test_a_classifier_scales_as_its_folder_says():
    classifier = mh.ImageClassifier.load(DATA / "vit_classifier")
    expected = mh.load_safetensors(DATA / "vit_classifier" / "expected.safetensors")
    images = np.asarray(expected["images"]).astype(np.uint8)
    np.testing.assert_allclose(classifier.pixels(images), expected["pixels"], atol=1e-6)
    np.testing.assert_allclose(classifier.logits(images), expected["logits"], atol=1e-5)
    assert classifier.labels == ["cat", "dog", "a third"]
    with pytest.raises(mh.ShapeError, match="images are not resized"):
        classifier.logits(images[..., :4])


def test_is_trained_from_python():
    config = mh.models.ImageEncoderConfig(image_size=4, patch_size=2, channels=1, num_layers=1, num_heads=1, embed_dim=4, ffn_dim=5,
                                          head="classification", num_labels=2, pooler=False)
    model = mh.models.ImageEncoder(config)
    optimizer = mh.optim.AdamW(model.parameters(), lr=0.02)
    pixels = np.stack([np.ones((1, 4, 4)), -np.ones((1, 4, 4))]).astype(np.float32)
    losses = []
    for _ in range(40):
        with mh.Tape() as tape:
            loss = mh.cross_entropy(model.logits(pixels), np.array([0, 1]))
            tape.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    assert losses[-1] < 0.3 * losses[0]
