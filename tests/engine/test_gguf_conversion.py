"""The converter is tried on a tiny model of its own format: the real one takes half a minute."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from app.engine import gguf_conversion


def write_tiny_gguf(path: Path) -> None:
    """A llama of one layer over the 256 bytes, as llama.cpp would write it."""
    alphabet = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256))]
    alphabet += [chr(256 + n) for n in range(256 - len(alphabet))]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet, "ab"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    shapes = {
        "token_embd": (len(tokens), 32),
        "output_norm": (32,),
        "blk.0.attn_norm": (32,),
        "blk.0.ffn_norm": (32,),
        **{f"blk.0.attn_{part}": (32, 32) for part in ("q", "k", "v", "output")},
        "blk.0.ffn_gate": (64, 32),
        "blk.0.ffn_up": (64, 32),
        "blk.0.ffn_down": (32, 64),
    }
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.full(shape, 0.5, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.timeout(300)
def test_a_gguf_becomes_a_folder_with_weights_tokenizer_and_the_cards_sampling(
    tmp_path: Path,
) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf")
    folder = tmp_path / "folder"
    folder.mkdir()

    command = [sys.executable, "-P", gguf_conversion.__file__]
    with subprocess.Popen(
        [*command, str(tmp_path / "tiny.gguf"), str(folder)],
        stdin=subprocess.PIPE,  # open until the converter has ended
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr
        errors = process.stderr.read()
    assert process.returncode == 0, errors

    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], "bfloat16")
    assert (folder / "model.safetensors").stat().st_size > 2 * 260 * 32
    tokens = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert tokens["ab"] == 259
    assert "m['content']" in (folder / "chat_template.jinja").read_text()
    assert json.loads((folder / "generation_config.json").read_text()) == {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "do_sample": True,
        "temperature": 0.2,
        "top_p": 0.9,
    }


def test_the_converter_ends_with_its_parent() -> None:
    script = (
        "import threading, time\n"
        "from app.engine import gguf_conversion\n"
        "threading.Thread(target=gguf_conversion._end_with_parent, daemon=True).start()\n"
        "print('up', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        assert process.stdin
        process.stdin.close()
        assert process.wait(20) == 1
