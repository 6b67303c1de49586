"""Models of Hugging Face transformers, watched; tiny ones with random weights, made here."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from hwbackend.attention.choice import Covering, Heaviest
from hwbackend.attention.sampler import Sampling
from hwbackend.attention.source import record
from hwbackend.attention.torch_source import TorchAttention
from sim.errors import ConfigError
from sim.kv.access.reuse import Reuse

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6]


@pytest.mark.parametrize("name", ["torch", "transformers"])
def test_without_the_libraries_one_line_says_what_to_install(name, tmp_path, monkeypatch):
    if name == "transformers":
        pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=f"{name} is not installed; pip install torch transformers"):
        TorchAttention.load(tmp_path, "text")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none: no such folder; give one with config.json"):
        TorchAttention.load(tmp_path / "none", "text")


@pytest.fixture(scope="module")
def libraries():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    return torch, pytest.importorskip("transformers", reason="Hugging Face transformers are not installed")


def llama(libraries, **options):
    torch, transformers = libraries
    torch.manual_seed(5)
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **heads, **options}))


def source_of(model, prompt=PROMPT) -> TorchAttention:
    return TorchAttention(model, prompt, "tiny", random_weights=True)


def test_what_is_recorded_are_the_weights_of_the_model_computed_without_a_cache(libraries):
    torch, _ = libraries
    model, steps = llama(libraries), 5
    recording = record(source_of(model), Sampling(4, Covering(1.0), steps=steps))
    assert (recording.header.context_tokens, recording.header.num_layers) == (len(PROMPT) + 1, 4)
    assert recording.header.source.startswith("tiny with random weights, from a prompt of 21 tokens; pages:")
    with torch.inference_mode():
        tokens = model.generate(
            torch.tensor([PROMPT]), max_new_tokens=steps, do_sample=False, eos_token_id=-1
        )
        for step in range(steps):
            context = len(PROMPT) + 1 + step
            seen = model(tokens[:, :context], output_attentions=True).attentions
            for layer in range(4):
                mass = seen[layer][0, :, -1].double().numpy().mean(axis=0)
                rows = (recording.step == step) & (recording.layer == layer)
                expected = np.add.reduceat(mass, np.arange(0, context, 4))
                assert recording.page[rows].tolist() == list(range(expected.size))
                assert recording.weight[rows].sum() == pytest.approx(1, abs=1e-9)
                np.testing.assert_allclose(recording.weight[rows], expected, rtol=0, atol=1e-6)


def test_a_prompt_in_chunks_is_the_prompt(libraries, monkeypatch):
    sampling = Sampling(4, Heaviest(2), "apart", 4)
    whole = record(source_of(llama(libraries)), sampling)
    monkeypatch.setattr("hwbackend.attention.torch_source.PROMPT_CHUNK", 5)
    parts = record(source_of(llama(libraries)), sampling)
    assert (whole.header.num_layers, whole.header.heads) == (8, 2)
    assert np.array_equal(whole.page, parts.page)
    np.testing.assert_allclose(whole.weight, parts.weight, rtol=0, atol=1e-6)


def test_a_window_sees_the_latest_tokens_alone(libraries):
    torch, transformers = libraries
    torch.manual_seed(5)
    config = transformers.MistralConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=8,
    )
    model = transformers.MistralForCausalLM(config)
    recording = record(source_of(model), Sampling(1, Covering(1.0), steps=6))
    back = len(PROMPT) + recording.step - recording.page
    assert (recording.weight[back < 8] > 0).all()
    assert (recording.weight[back >= 8] == 0).all()


def test_other_architectures_need_no_line_of_their_own(libraries):
    torch, transformers = libraries
    torch.manual_seed(5)
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=32, n_layer=3, n_head=4, n_positions=256, bos_token_id=0, eos_token_id=0
    )
    recording = record(
        source_of(transformers.GPT2LMHeadModel(config)), Sampling(4, Covering(1.0), "apart", steps=3)
    )
    assert (recording.header.num_layers, recording.header.heads) == (12, 4)
    weight = np.bincount(recording.step * 12 + recording.layer, recording.weight)
    np.testing.assert_allclose(weight, 1, rtol=0, atol=1e-9)


def test_layers_of_random_weights_share_what_chance_gives(libraries):
    torch, _ = libraries
    model = llama(libraries, num_hidden_layers=10, initializer_range=0.3)
    prompt = torch.randint(0, 50, (640,), generator=torch.Generator().manual_seed(1)).numpy()
    recording = record(source_of(model, prompt), Sampling(16, Heaviest(12), steps=12))
    across = Reuse(recording).cross_layer
    assert abs(across.average.beyond_chance) < 0.1
    assert across.verdict(recording.header)[0] == "not judged"


def test_a_folder_without_a_model_and_an_empty_prompt_are_refused(libraries, tmp_path):
    with pytest.raises(ConfigError, match=str(tmp_path)):
        TorchAttention.load(tmp_path, "text")
    with pytest.raises(ConfigError, match="tiny: the prompt is empty"):
        source_of(llama(libraries), [])


def test_a_model_is_read_from_its_folder(libraries, tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers are not installed")
    _, transformers = libraries
    words = {"[UNK]": 0, **{f"w{i}": i for i in range(1, 50)}}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=model, unk_token="[UNK]").save_pretrained(tmp_path)
    llama(libraries).save_pretrained(tmp_path)
    source = TorchAttention.load(tmp_path, " ".join(f"w{i}" for i in PROMPT), max_prompt_tokens=20)
    sampling = Sampling(4, Covering(0.9), steps=3)
    found, direct = record(source, sampling), record(source_of(llama(libraries), PROMPT[:20]), sampling)
    assert found.header.random_weights is False  # unless somebody says so
    untrained = TorchAttention.load(tmp_path, "w1", random_weights=True)
    assert record(untrained, sampling).header.random_weights is True
    assert np.array_equal(found.page, direct.page)
    np.testing.assert_allclose(found.weight, direct.weight, rtol=0, atol=1e-6)
