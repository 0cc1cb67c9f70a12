"""Make a tiny Llama with random weights, for tests against a real vLLM: python scripts/make_tiny_model.py OUT

Runs with the python of the .vllm venv (torch, transformers, tokenizers). The weights come from a fixed seed and the
tokenizer is trained on the standard library of that python, so that one interpreter makes the same model each time;
another patch release of Python has another standard library, hence other token ids.

The model hardly ever stops by itself: its next token is close to uniform over the vocabulary, so end-of-text has a
chance of about 1 in 2048 per token. For answers of various lengths send temperature 1 and logit_bias {"2": 5.5}.
"""

import argparse
import hashlib
import shutil
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from pathlib import Path

VOCABULARY_TOKENS = 2048
CORPUS_FILES = 150
SEED = 20251121
STAMP = "made-from.txt"
PAD, BOS, EOS = "<pad>", "<s>", "</s>"  # ids 0, 1 and 2, in this order
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: "
    "{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for part in m['content'] %}{{ part['text'] }}{% endfor %}{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def recipe_digest() -> str:
    """What the result depends on: this file, the interpreter and the libraries that write it."""
    parts = [Path(__file__).read_text("utf-8"), sys.version]
    parts += [f"{name} {version(name)}" for name in ("torch", "transformers", "tokenizers")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def write_tokenizer(out: Path) -> list[int]:
    """Write the tokenizer; the ids that are no text by themselves: special tokens and single bytes outside ASCII."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_TOKENS,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:CORPUS_FILES]
    corpus = (source.read_text("utf-8", errors="ignore") for source in sources)
    tokenizer.train_from_iterator(corpus, trainer)
    if tokenizer.get_vocab_size() != VOCABULARY_TOKENS:
        raise SystemExit(f"the corpus gave {tokenizer.get_vocab_size()} tokens, not {VOCABULARY_TOKENS}")
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, pad_token=PAD, model_max_length=4096
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(out)
    texts = tokenizer.decode_batch([[index] for index in range(VOCABULARY_TOKENS)])
    return [index for index, text in enumerate(texts) if not text or "\N{REPLACEMENT CHARACTER}" in text]


def write_weights(out: Path, silent_ids: list[int]) -> int:
    """Write config and weights; the number of parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY_TOKENS,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        dtype="bfloat16",
    )
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    # A logit of exactly 0 is never the greatest of 2048: greedy answers are readable text and never end early. Sampled
    # ones hold such tokens about as often as any other, and the chance of end-of-text depends on its logit_bias alone.
    with torch.no_grad():
        model.lm_head.weight[silent_ids] = 0
    model.save_pretrained(out)
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a tiny Llama with random weights.")
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    digest = recipe_digest()
    stamp = out / STAMP
    if stamp.is_file() and stamp.read_text("utf-8") == digest:
        print(f"{out}: already made")
        return
    if out.exists() and any(out.iterdir()) and not stamp.is_file():
        raise SystemExit(f"{out} is not empty and was not made by this script: name another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    # Made beside OUT and renamed, so that an interrupted run never leaves a folder that looks complete.
    work = Path(tempfile.mkdtemp(prefix=out.name + ".", dir=out.parent))
    try:
        work.chmod(0o755)  # mkdtemp makes it private
        parameters = write_weights(work, write_tokenizer(work))
        (work / STAMP).write_text(digest, "utf-8")
        if out.exists():
            shutil.rmtree(out)
        work.rename(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"{out}: made, {parameters} parameters")


if __name__ == "__main__":
    main()
