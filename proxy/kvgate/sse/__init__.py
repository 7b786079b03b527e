"""What an engine's answer says about itself, read beside the bytes that are passed on unchanged.

`SSEMeter` reads a stream as it goes by, `inspect_json` a whole JSON body. Both know vLLM's four wire forms
(OpenAI, token-in/token-out, Anthropic, Responses) and never raise, whatever an engine sends: what they can't
read they don't count.
"""

from __future__ import annotations

from kvgate.sse.body import JSONVerdict, inspect_json
from kvgate.sse.fields import Finish, StreamError, is_busy, is_unknown_model
from kvgate.sse.meter import FirstEvent, SSEMeter

__all__ = [
    "Finish",
    "FirstEvent",
    "JSONVerdict",
    "SSEMeter",
    "StreamError",
    "inspect_json",
    "is_busy",
    "is_unknown_model",
]
