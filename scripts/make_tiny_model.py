"""Make a Llama with random weights, for tests against real servers.

    python scripts/make_tiny_model.py OUT [--size 1b]

The script runs with the python of the .vllm venv (torch, transformers, tokenizers). The weights
come from a fixed seed. The tokenizer is trained on the standard library of that python, so one
interpreter makes the same model each time. Another patch release of Python has another standard
library, hence other token ids.

The model hardly ever stops by itself. Its next token is close to uniform over the vocabulary, so
end-of-text has a chance of about 1 in 2048 per token. For answers of various lengths send
temperature 1 and logit_bias {"2": 5.5}.

`--size` is `tiny` (for the CPU suites), or for a GPU `small`, `1b` or `8b` in the shapes of the
Llamas of that size. `--hidden`, `--layers` and so on change single numbers. Larger models are made
on the GPU where there is one. Tokens above the trained vocabulary are filler words that decode to
text and that no prompt contains.
"""

import argparse
import hashlib
import json
import sys
import sysconfig
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _made import make_folder


@dataclass(frozen=True)
class Shape:
    """A Llama's numbers, in the words of this script's options."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    length: int


SHAPES = {
    "tiny": Shape(2048, 256, 512, 4, 4, 4, 4096),
    "small": Shape(8192, 768, 2048, 12, 12, 4, 8192),
    "1b": Shape(128256, 2048, 8192, 16, 32, 8, 8192),
    "8b": Shape(128256, 4096, 14336, 32, 32, 8, 8192),
}
TRAINED_TOKENS = 8192  # at most; what 150 files of Python are good for
CORPUS_FILES = 150
SEED = 20251121
PAD, BOS, EOS = "<pad>", "<s>", "</s>"  # ids 0, 1 and 2, in this order
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: "
    "{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for part in m['content'] %}{{ part['text'] }}{% endfor %}{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def recipe_digest(shape: Shape, *more: Path) -> str:
    """Hash this file, the shape, the interpreter and the libraries that write the model.

    The result depends on nothing else; of another script that uses this one, on its file, too.
    """
    parts = [path.read_text("utf-8") for path in (Path(__file__), *more)] + [repr(shape), sys.version]
    parts += [f"{name} {version(name)}" for name in ("torch", "transformers", "tokenizers")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def write_tokenizer(out: Path, shape: Shape) -> list[int]:
    """Write the tokenizer; return the ids that are no text by themselves.

    The ids are special tokens and single bytes outside ASCII.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=min(shape.vocabulary, TRAINED_TOKENS),
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:CORPUS_FILES]
    corpus = (source.read_text("utf-8", errors="ignore") for source in sources)
    tokenizer.train_from_iterator(corpus, trainer)
    trained = tokenizer.get_vocab_size()
    if trained != min(shape.vocabulary, TRAINED_TOKENS):
        raise SystemExit(f"the corpus gave {trained} tokens, not {min(shape.vocabulary, TRAINED_TOKENS)}")
    if trained < shape.vocabulary:
        description = json.loads(tokenizer.to_str())
        description["model"]["vocab"] |= {f"\u0120w{index:06}": index for index in range(trained, shape.vocabulary)}
        tokenizer = Tokenizer.from_str(json.dumps(description))
    save_tokenizer(out, shape, tokenizer, CHAT_TEMPLATE)
    texts = tokenizer.decode_batch([[index] for index in range(shape.vocabulary)])
    return [index for index, text in enumerate(texts) if not text or "\N{REPLACEMENT CHARACTER}" in text]


def save_tokenizer(out: Path, shape: Shape, tokenizer: Any, chat_template: str) -> None:
    """Write a tokenizer with its special tokens and chat template, as transformers reads it."""
    from transformers import PreTrainedTokenizerFast

    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, pad_token=PAD, model_max_length=shape.length
    )
    wrapped.chat_template = chat_template
    wrapped.save_pretrained(out)


def llama_config(shape: Shape) -> Any:
    """Return transformers' config of a Llama of this shape, in bfloat16."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.length,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        dtype="bfloat16",
    )


def write_weights(out: Path, shape: Shape, silent_ids: list[int]) -> int:
    """Write config and weights; the number of parameters."""
    import torch
    from transformers import LlamaForCausalLM

    config = llama_config(shape)
    torch.manual_seed(SEED)
    if shape == SHAPES["tiny"]:
        # In float32 first: the weights that recorded replies came from.
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    else:
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = LlamaForCausalLM(config)
    # A logit of exactly 0 is never the greatest of 2048: greedy answers are readable text and never
    # end early. Sampled answers hold such tokens about as often as any other token. The chance of
    # end-of-text depends on its logit_bias alone.
    with torch.no_grad():
        model.lm_head.weight[silent_ids] = 0
    model.cpu().save_pretrained(out)
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a Llama with random weights.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", choices=SHAPES, default="tiny")
    for name in asdict(SHAPES["tiny"]):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help="instead of the size's own")
    options = vars(parser.parse_args())
    shape = SHAPES[options["size"]]
    shape = replace(shape, **{name: options[name] for name in asdict(shape) if options[name] is not None})
    if shape.hidden % shape.heads or shape.heads % shape.kv_heads:
        raise SystemExit("--hidden is a multiple of --heads, and --heads of --kv-heads")

    def fill(folder: Path) -> int:
        return write_weights(folder, shape, write_tokenizer(folder, shape))

    make_folder(options["out"], recipe_digest(shape), fill)


if __name__ == "__main__":
    main()
