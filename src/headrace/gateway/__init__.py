"""HTTP in: the OpenAI API of an engine, with `/generate` for token ids, and the APIs of episodes that agents play.

Nothing listens beyond loopback without a token. Streamed or not, a request gives the same text: both are put
together by `text.TextStream`.
"""

from headrace.gateway.app import build_app
from headrace.gateway.server import HttpServer, serve

__all__ = ["HttpServer", "build_app", "serve"]
