"""localspec: speculative decoding for GGUF models on one consumer GPU."""

__version__ = "0.1.0"
