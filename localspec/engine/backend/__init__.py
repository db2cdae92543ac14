"""The only door to llama.cpp: models, contexts, samplers, devices. Knows nothing of drafting or text."""

from localspec.engine.backend.context import Context, ContextSettings
from localspec.engine.backend.library import build_description
from localspec.engine.backend.model import Model, load_model
from localspec.engine.backend.sequence import Sequence

__all__ = ["Context", "ContextSettings", "Model", "Sequence", "build_description", "load_model"]
