"""Writer of a tiny target with several NextN layers in its file: MiMo-V2, a layer for each distance."""

from __future__ import annotations

from pathlib import Path

from localspec.selftest.targets import QK_GAIN, Shape, Target, attention_keys, feed_forward
from localspec.selftest.weights import TinyFile, tiny_file

NEXTN = 3
WINDOW = 32


def write_mimo2(path: Path, target: Target) -> None:
    """MiMo-V2 with dense layers: the first trunk layer and the outer NextN layers see a window only."""
    shape = target.shape
    blocks = shape.layers + NEXTN
    windowed = [layer in (0, shape.layers, blocks - 1) for layer in range(blocks)]
    with tiny_file(path, "mimo2", target.name, target.draw) as file:
        target.keys(
            file,
            **{
                **attention_keys(shape),
                "block_count": blocks,
                "nextn_predict_layers": NEXTN,
                "expert_feed_forward_length": shape.ff,
                "attention__sliding_window": WINDOW,
                "attention__sliding_window_pattern": windowed,
                "rope__freq_base_swa": 10_000.0,
            },
        )
        target.embeddings(file)
        for layer in range(blocks):
            block = f"blk.{layer}"
            file.norm(f"{block}.attn_norm", shape.width)
            _fused_attention(file, block, shape)
            file.norm(f"{block}.ffn_norm", shape.width)
            feed_forward(file, block, shape)
            if layer >= shape.layers:
                file.matrix(f"{block}.nextn.eh_proj", shape.width, 2 * shape.width)
                for norm in ("enorm", "hnorm", "shared_head_norm"):
                    file.norm(f"{block}.nextn.{norm}", shape.width)


def _fused_attention(file: TinyFile, block: str, shape: Shape) -> None:
    """Add q, k and v as one matrix, and the output."""
    import numpy as np

    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    parts = [
        file.draw.normal(f"{block}.attn_{part}", rows, shape.width) * (file.draw.scale * gain)
        for part, rows, gain in (("q", wide, QK_GAIN), ("k", narrow, QK_GAIN), ("v", narrow, 1.0))
    ]
    file.add(f"{block}.attn_qkv.weight", np.vstack(parts).astype(np.float32), quantize=True)
    file.matrix(f"{block}.attn_output", shape.width, wide)
