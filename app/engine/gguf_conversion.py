"""Turns a GGUF file into the folder that vLLM reads; started as a script with the two paths.

It runs as a process of its own, because torch and transformers take seconds to import and hundreds
of megabytes that the server would otherwise keep. It ends with its parent, however that one ends:
standard input closes then. It imports nothing of ours, so that it runs from any folder.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

SAMPLING_DEFAULTS = {"do_sample": True, "temperature": 0.2, "top_p": 0.9}
"""What the model's card recommends; at temperature 1 so small a model talks nonsense."""

TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def convert(gguf: Path, folder: Path) -> None:
    """Write weights (bfloat16), tokenizer, chat template and sampling defaults into `folder`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source, name = str(gguf.parent), gguf.name
    AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=name,
        dtype=torch.bfloat16,
        # Without this transformers refuses to save what it has read from a quantized file.
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)
    _write_sampling_defaults(folder / "generation_config.json")


def _write_sampling_defaults(path: Path) -> None:
    """Keep of what transformers wrote only the special tokens: the rest would undo the defaults."""
    written = json.loads(path.read_text())
    tokens = {name: written[name] for name in TOKENS if name in written}
    path.write_text(json.dumps(tokens | SAMPLING_DEFAULTS, indent=2) + "\n")


def _end_with_parent() -> None:
    """Wait for the parent's end of the pipe to close, however it died, and leave at once."""
    # Not sys.stdin: its lock, held by this thread, would abort an ordinary exit of the interpreter.
    os.read(0, 1)
    os._exit(1)


def main() -> int:
    """Convert as the command line says; the last line of standard error tells what went wrong."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except Exception as error:
        sys.stderr.write(f"\n{type(error).__name__}: {' '.join(str(error).split())}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
