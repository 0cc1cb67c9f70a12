"""Make a tiny BERT cross-encoder with random weights, for tests against a real vLLM.

    python scripts/make_tiny_classifier.py MODEL OUT

MODEL is the output of scripts/make_tiny_model.py. Its tokenizer is taken over, with BERT's frame of
special tokens around texts and pairs. The script runs with the python of the .vllm venv (torch,
transformers, tokenizers). The weights come from a fixed seed.

The model has one class by default, so that /score, /rerank and /classify are all served. With
--classes N above 1 vLLM serves /classify alone.
"""

import argparse
import hashlib
from pathlib import Path

from _made import make_folder

HIDDEN = 128
LAYERS = 2
LONGEST_TOKENS = 512
SEED = 20251121
WEIGHT_SPREAD = 0.3  # BERT's own 0.02 gives every text nearly the same score


def recipe_digest(tokenizer: Path, classes: int) -> str:
    """What the result depends on: this file, the tokenizer and the number of classes."""
    parts = [Path(__file__).read_bytes(), tokenizer.read_bytes(), str(classes).encode()]
    return hashlib.sha256(b"\n".join(parts)).hexdigest()


def write_tokenizer(source: Path, out: Path) -> int:
    """Write the tokenizer with a frame for pairs, and return the size of its vocabulary.

    The frame is <s> query </s> document </s>, with types 0 and 1.
    """
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    begin, end = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("</s>")
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", begin), ("</s>", end)]
    )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token="<s>",
        sep_token="</s>",
        pad_token="<pad>",
        model_max_length=LONGEST_TOKENS,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    wrapped.save_pretrained(out)
    return int(tokenizer.get_vocab_size())


def write_weights(out: Path, vocabulary: int, classes: int) -> int:
    """Write config and weights; the number of parameters."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        max_position_embeddings=LONGEST_TOKENS,
        num_labels=classes,
        pad_token_id=0,
        initializer_range=WEIGHT_SPREAD,
    )
    torch.manual_seed(SEED)
    model = BertForSequenceClassification(config)
    model.save_pretrained(out)
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a tiny BERT cross-encoder with random weights.")
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--classes", type=int, default=1)
    arguments = parser.parse_args()

    def fill(folder: Path) -> int:
        return write_weights(folder, write_tokenizer(arguments.model, folder), arguments.classes)

    make_folder(arguments.out, recipe_digest(arguments.model / "tokenizer.json", arguments.classes), fill)


if __name__ == "__main__":
    main()
