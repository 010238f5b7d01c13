"""generate() and pipelines choose the device by themselves and say what they say on the CPU."""

from collections.abc import Callable

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import nn
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, pipeline, set_seed

Factory = Callable[[str], nn.Module]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Words w0, w1, … of the tiny models' vocabulary."""
    words = {"[PAD]": 0, "[BOS]": 1, "[EOS]": 2, **{f"w{i}": i + 3 for i in range(93)}}
    model = Tokenizer(WordLevel(words, unk_token="[PAD]"))
    model.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="[PAD]", bos_token="[BOS]", eos_token="[EOS]", padding_side="left"
    )


def prompt(device: str) -> dict[str, torch.Tensor]:
    """Two prompts of six and four tokens, the shorter one padded on the left."""
    tokens = torch.tensor([[5, 17, 3, 88, 20, 41], [0, 0, 9, 64, 33, 12]])
    return {"input_ids": tokens.to(device), "attention_mask": (tokens != 0).long().to(device)}


@pytest.mark.parametrize(
    "strategy",
    [
        {},
        {"num_beams": 3},
        pytest.param({"repetition_penalty": 1.3, "no_repeat_ngram_size": 2}, marks=pytest.mark.slow),
        pytest.param({"cache_implementation": "static", "disable_compile": True}, marks=pytest.mark.slow),
        pytest.param({"use_cache": False}, marks=pytest.mark.slow),
    ],
    ids=lambda strategy: "-".join(strategy) or "greedy",
)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_deterministic_generation(tiny: Factory, name: str, strategy: dict) -> None:
    options = {"max_new_tokens": 12, "do_sample": False, **strategy}
    expected = tiny(name).eval().generate(**prompt("cpu"), **options)
    result = tiny(name).eval().to("npu").generate(**prompt("npu"), **options)
    assert result.device.type == "npu"
    assert torch.equal(result.cpu(), expected)


def test_sampling_repeats_with_the_seed(tiny: Factory) -> None:
    model = tiny("llama").eval().to("npu")
    options = {"max_new_tokens": 12, "do_sample": True, "top_k": 20, "top_p": 0.9, "temperature": 1.5}

    def sample(seed: int) -> torch.Tensor:
        set_seed(seed)  # of transformers: it knows torch.npu.manual_seed_all
        return model.generate(**prompt("npu"), **options)

    first = sample(7)
    assert torch.equal(sample(7), first)
    assert any(not torch.equal(sample(seed), first) for seed in (8, 9, 10))


def test_scores_and_hidden_states(tiny: Factory) -> None:
    model = tiny("llama").eval()
    options = {"max_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    expected = model.generate(**prompt("cpu"), **options)
    result = model.to("npu").generate(**prompt("npu"), **options)
    for ours, theirs in zip(result.scores, expected.scores, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_logits(tiny: Factory, dtype: torch.dtype) -> None:
    model = tiny("llama").eval()
    expected = model(**prompt("cpu")).logits
    model.to("npu", dtype)
    logits = model(**prompt("npu")).logits
    assert logits.dtype is dtype
    torch.testing.assert_close(logits.float().cpu(), expected, atol=3e-2, rtol=3e-2)


def test_text_generation_pipeline(tiny: Factory, tokenizer: PreTrainedTokenizerFast) -> None:
    options = {"max_new_tokens": 8, "do_sample": False, "return_full_text": False}
    texts = ["w1 w2 w3", "w7 w30"]
    results = []
    for arguments in ({"device": "cpu"}, {}):
        pipe = pipeline("text-generation", model=tiny("gpt2"), tokenizer=tokenizer, **arguments)
        results.append(pipe(texts, batch_size=2, **options))
    assert pipe.device.type == "npu"
    assert results[0] == results[1]


def test_text_classification_pipeline(tiny: Factory, tokenizer: PreTrainedTokenizerFast) -> None:
    results = []
    for arguments in ({"device": "cpu"}, {}, {"device": 0}, {"device": "npu:0"}):
        pipe = pipeline("text-classification", model=tiny("bert"), tokenizer=tokenizer, top_k=None, **arguments)
        results.append(pipe(["w1 w2 w3", "w4"]))
    assert pipe.device == torch.device("npu:0")
    for result in results[1:]:
        for ours, theirs in zip(result, results[0], strict=True):
            assert [r["label"] for r in ours] == [r["label"] for r in theirs]
            assert [r["score"] for r in ours] == pytest.approx([r["score"] for r in theirs], abs=1e-5)


@pytest.mark.slow
def test_feature_extraction_pipeline(tokenizer: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(0)
    model = BertModel(BertConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)).eval()
    results = []
    for arguments in ({"device": "cpu"}, {}):
        pipe = pipeline("feature-extraction", model=model, tokenizer=tokenizer, return_tensors=True, **arguments)
        results.append(pipe("w1 w2 w3"))
    assert pipe.device.type == "npu"
    assert results[0].device.type == results[1].device.type == "cpu"  # pipelines hand results back there
    torch.testing.assert_close(results[1], results[0], atol=1e-4, rtol=1e-4)
