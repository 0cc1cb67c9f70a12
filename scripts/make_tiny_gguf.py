"""Write a model of make_tiny_model.py or make_thinking_model.py as a GGUF file for llama.cpp.

    python scripts/make_tiny_gguf.py MODEL OUT.gguf

The script needs the packages `gguf` and `numpy` (scripts/llama_server.sh installs them), no torch.
llama.cpp's own converter knows tokenizers by the hash of their output for a test text, so the
converter refuses a tokenizer that was trained on the spot. The weights stay as they are: bfloat16
is written as float32, which loses nothing. So greedy answers are those of the other servers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import struct
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

NAMES = {  # of a layer's tensors, as transformers and as llama.cpp call them
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
Array = npt.NDArray[np.float32]


def read_tensors(path: Path) -> dict[str, Array]:
    """The tensors of a safetensors file of bfloat16 numbers.

    The file has a length, a header of JSON, then the bytes.
    """
    data = path.read_bytes()
    (header_bytes,) = struct.unpack_from("<Q", data)
    header: dict[str, Any] = json.loads(data[8 : 8 + header_bytes])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            raise SystemExit(f"{path}: {name} is {entry['dtype']}; this script reads BF16")
        begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
        # bfloat16 is the upper half of a float32.
        halves = np.frombuffer(data[begin:end], dtype="<u2").astype(np.uint32)
        tensors[name] = (halves << 16).view(np.float32).reshape(entry["shape"])
    return tensors


def rotated(weight: Array, heads: int) -> Array:
    """Reorder the rows for llama.cpp.

    llama.cpp turns neighbouring numbers of a head, transformers the two halves.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2)
    return np.ascontiguousarray(pairs.reshape(rows, columns))


def gguf_tensors(tensors: dict[str, Array], config: dict[str, Any]) -> dict[str, Array]:
    heads = {"self_attn.q_proj": config["num_attention_heads"], "self_attn.k_proj": config["num_key_value_heads"]}
    out = {}
    for name, tensor in tensors.items():
        stem = name.removesuffix(".weight")
        if stem in WHOLE:
            out[f"{WHOLE[stem]}.weight"] = tensor
            continue
        layer, own = stem.removeprefix("model.layers.").split(".", 1)
        out[f"blk.{layer}.{NAMES[own]}.weight"] = rotated(tensor, heads[own]) if own in heads else tensor
    return out


def write(model: Path, out: Path) -> None:
    config = json.loads((model / "config.json").read_text("utf-8"))
    tokenizer = json.loads((model / "tokenizer.json").read_text("utf-8"))
    ids: dict[str, int] = tokenizer["model"]["vocab"]
    added = {entry["id"]: entry["special"] for entry in tokenizer["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    writer = gguf.GGUFWriter(str(out), "llama")
    writer.add_name(out.stem)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")  # the split of ByteLevel(use_regex=True)
    writer.add_token_list(tokens)
    # A control token, which is special, is no text; a user's own, such as <think>, is.
    kinds = {True: gguf.TokenType.CONTROL, False: gguf.TokenType.USER_DEFINED, None: gguf.TokenType.NORMAL}
    writer.add_token_types([kinds[added.get(index)] for index in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((model / "chat_template.jinja").read_text("utf-8"))
    for name, tensor in gguf_tensors(read_tensors(model / "model.safetensors"), config).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a model of these scripts as GGUF.")
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    model, out = options.model, options.out
    sources = [model / name for name in ("model.safetensors", "tokenizer.json", "config.json")]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in (*sources, Path(__file__)))).hexdigest()
    stamp = out.with_suffix(".made-from")
    if out.is_file() and stamp.is_file() and stamp.read_text("utf-8") == digest:
        print(f"{out}: already made")
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    # The file is made beside OUT and renamed, so an interrupted run never leaves a file that looks
    # complete.
    with tempfile.TemporaryDirectory(dir=out.parent) as work:
        made = Path(work) / out.name
        write(model, made)
        made.rename(out)
    stamp.write_text(digest, "utf-8")
    print(f"{out}: made, {out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
