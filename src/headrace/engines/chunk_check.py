"""What an engine gave, against what was asked of it: by whoever goes on from it."""

from __future__ import annotations

from headrace.engines.admission import VersionLineage
from headrace.engines.protocol import EngineError, GenerateRequest, TokenChunk
from headrace.engines.validate import check_finite
from headrace.weights.version import Version


def check_chunk(
    chunk: TokenChunk,
    request: GenerateRequest,
    line: VersionLineage,
    minimum: Version | None,
    exactly: Version | None = None,
) -> None:
    """`minimum`: the oldest version that may serve it. `exactly`: the one that alone may. Raises EngineError for a
    chunk that is not what was asked for."""
    lengths = {len(chunk.tokens), len(chunk.logprobs), len(chunk.versions), len(chunk.branches)}
    if len(lengths) != 1:
        raise EngineError(f"request {request.request_id}: a chunk whose arrays differ in length")
    check_finite(request.request_id, chunk.tokens, chunk.logprobs)
    if request.return_kept and request.sampling.truncates and len(chunk.tokens):
        _check_kept(chunk, request)
    if exactly is not None:
        others = (chunk.versions != exactly.number) | (chunk.branches != exactly.branch)
        if others.any():
            served = _served(chunk)[int(others.argmax())]
            raise EngineError(f"request {request.request_id} asked for {exactly} alone, but was served by {served}")
    if minimum is None or not len(chunk.tokens):
        return
    floor = line.floor(minimum)
    if not _is_new_enough(line, chunk, floor):
        old = next(v for v in _served(chunk) if v.number < floor or not line.held(v))
        raise EngineError(f"request {request.request_id} asked for {minimum}, but was served by {old}")


def _served(chunk: TokenChunk) -> list[Version]:
    """By which each of its tokens was sampled."""
    return [Version(int(b), int(n)) for b, n in zip(chunk.branches, chunk.versions, strict=True)]


def _is_new_enough(line: VersionLineage, chunk: TokenChunk, minimum: int) -> bool:
    oldest, newest_number = int(chunk.versions.min()), int(chunk.versions.max())
    if oldest < minimum:
        return False
    branch = int(chunk.branches[0])
    if oldest == newest_number and (chunk.branches == branch).all():
        return line.held(Version(branch, oldest))
    newest: dict[int, int] = {}
    for branch, number in zip(chunk.branches.tolist(), chunk.versions.tolist(), strict=True):
        newest[branch] = max(number, newest.get(branch, number))
    return all(line.held(Version(*version)) for version in newest.items())


def _check_kept(chunk: TokenChunk, request: GenerateRequest) -> None:
    """Raises EngineError unless each token came with a kept set that it is in."""
    kept = chunk.kept
    if kept is None or len(kept) != len(chunk.tokens) or not (kept.counts > 0).all():
        raise EngineError(f"request {request.request_id}: tokens of a cut distribution came without kept sets")
    if not kept.contain(chunk.tokens).all():
        raise EngineError(f"request {request.request_id}: a token is outside its kept set")
