"""Make a Llama that thinks for 500 tokens and then answers, for tests against real servers.

    python scripts/make_thinking_model.py OUT

Its next token depends on the last token alone, greedy or sampled:

- after `<think>` come 500 words of three letters, each once, then `</think>`;
- after `</think>`, whoever has put it there, come the 12 words of the answer, then end-of-text;
- after one of these words comes the next one, so that a text which breaks off is gone on with;
- after two newlines comes the answer: some put them behind `</think>`;
- after everything else, such as the end of a chat's prompt, comes `<think>`.

So the answer shows whether a budget for thinking was held, and whether there was room for it. The
chat template heeds `enable_thinking`, and shows the reasoning of earlier answers.

The script runs with the python of the .vllm venv (torch, transformers, tokenizers). Nothing is
random: neither attention nor MLP writes anything, and the embedding of a token is the unit vector of
what comes next.
"""

import argparse
from dataclasses import replace
from itertools import product
from pathlib import Path

from _made import make_folder
from make_tiny_model import BOS, EOS, PAD, Shape, llama_config, recipe_digest, save_tokenizer

OPEN, CLOSE = "<think>", "</think>"
THINKING_WORDS = 500
THOUGHTS = [f" {''.join(letters)}" for letters in product("bdfgklmnprstvz", "aeiou", "bdfgklmnprstvz")][:THINKING_WORDS]
SENTENCE = " So the answer of this toy model is always these twelve words"
ANSWER = [f" {word}" for word in SENTENCE.split()]
SHAPE = Shape(vocabulary=0, hidden=576, intermediate=64, layers=1, heads=9, kv_heads=9, length=4096)
"""Of 24 x 24 numbers: the norm of a unit vector is then 24, a number without a rounding error."""
LOGIT = 48.0  # of the next token, where all others have 0
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}:"
    "{% if m['reasoning_content'] %}<think>{{ m['reasoning_content'] }}</think>{% endif %}"
    "{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for part in m['content'] %}{{ part['text'] }}{% endfor %}{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)


def vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the tokens with their ids, and the merges by which each word becomes one token."""
    from tokenizers import pre_tokenizers

    tokens = dict.fromkeys([PAD, BOS, EOS, OPEN, CLOSE, *sorted(pre_tokenizers.ByteLevel.alphabet())])
    merges = {}
    for word in ["\n\n", *THOUGHTS, *ANSWER]:
        letters = word.translate({ord(" "): "\u0120", ord("\n"): "\u010a"})  # as ByteLevel writes them
        for end in range(1, len(letters)):
            merges[letters[:end], letters[end]] = None
            tokens[letters[: end + 1]] = None
    return {token: index for index, token in enumerate(tokens)}, [*merges]


def write_tokenizer(out: Path) -> list[list[int]]:
    """Write the tokenizer; return the ids of each place of the chain, of everything else's first."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    ids, merges = vocabulary()
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([PAD, BOS, EOS])
    # As Qwen3 has them: tokens of their own that are text.
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in (OPEN, CLOSE)])
    save_tokenizer(out, SHAPE, tokenizer, CHAT_TEMPLATE)
    chain = [tokenizer.encode(text).ids for text in (OPEN, *THOUGHTS, CLOSE, *ANSWER)]
    assert all(len(place) == 1 for place in chain), "a word is one token"
    chain[1 + THINKING_WORDS] += tokenizer.encode("\n\n").ids
    in_chain = {index for place in chain for index in place}
    return [[index for index in ids.values() if index not in in_chain], *chain]


def write_weights(out: Path, places: list[list[int]]) -> int:
    """Write config and weights; the number of parameters."""
    import torch
    from transformers import LlamaForCausalLM

    shape = replace(SHAPE, vocabulary=sum(map(len, places)))
    assert len(places) <= shape.hidden, "a place has a dimension of its own"
    model = LlamaForCausalLM(llama_config(shape)).to(torch.bfloat16)
    following = [place[0] for place in places[1:]] + [2]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_("norm" in name)
        for dimension, (place, next_id) in enumerate(zip(places, following, strict=True)):
            model.model.embed_tokens.weight[place, dimension] = 1
            model.lm_head.weight[next_id, dimension] = LOGIT / shape.hidden**0.5
    model.save_pretrained(out)
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a Llama that thinks and then answers.")
    parser.add_argument("out", type=Path)
    digest = recipe_digest(SHAPE, Path(__file__))
    make_folder(parser.parse_args().out, digest, lambda folder: write_weights(folder, write_tokenizer(folder)))


if __name__ == "__main__":
    main()
