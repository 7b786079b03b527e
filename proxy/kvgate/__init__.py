"""kvgate: an admission-control reverse proxy for pools of vLLM servers."""

__version__ = "0.1.0"
