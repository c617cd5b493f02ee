"""Weights that SGLang takes over a gloo group, some tensors at a time, in an update that is begun and ended."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from headrace.engines.servers.http import ServerHttp, ServerRefused
from headrace.engines.servers.weight_sender import GROUP_S, STILL_S, WeightSender, buckets
from headrace.weights.plane import WeightOffer

_CALL_S = 60.0


class SglangGroup:
    def __init__(self, http: ServerHttp, sender: WeightSender) -> None:
        self._http = http
        self._sender = sender
        self._name = ""
        """Of the group that the server was told of last."""

    async def load(self, offer: WeightOffer, name: str, *, ranks: int, flush: bool) -> None:
        """`ranks`: processes of the server that take weights. `flush`: empty its prefix cache. Raises WeightError,
        EngineError; then what it has loaded is of no version."""
        sender = self._sender
        await sender.open()
        entries = await sender.take(offer)
        await self._begin()
        if not sender.has_group:
            await self._come_together(ranks)
        parts = [*buckets(entries)]
        for number, part in enumerate(parts, start=1):
            is_last = number == len(parts)
            body = {
                "names": [entry.name for entry, _ in part],
                "dtypes": [entry.dtype for entry, _ in part],
                "shapes": [entry.shape for entry, _ in part],
                "group_name": self._name,
                "flush_cache": flush and is_last,
                "abort_all_requests": False,
                "weight_version": name if is_last else None,
            }
            what = f"{offer.version} to be loaded, part {number} of {len(parts)}"
            call = self._call("/update_weights_from_distributed", body, what, STILL_S * (1 + len(part)))
            await sender.during(call, sender.send([place for _, place in part]))
        await sender.leave()
        await self._call("/end_weight_update", {}, "an update to end")

    async def _begin(self) -> None:
        """One that failed may have been left open, and then another one is refused."""
        try:
            await self._call("/begin_weight_update", {}, "an update to begin")
        except ServerRefused:
            await self._call("/end_weight_update", {}, "an update that failed to end")
            await self._call("/begin_weight_update", {}, "an update to begin")

    async def _come_together(self, ranks: int) -> None:
        sender = self._sender
        if self._name:
            with suppress(ServerRefused):  # it never came together
                await self._call("/destroy_weights_update_group", {"group_name": self._name}, "a group to be left")
        self._name = f"headrace-{sender.port}"
        body = {
            "master_address": sender.host,
            "master_port": sender.port,
            "rank_offset": 1,
            "world_size": 1 + ranks,
            "group_name": self._name,
            "backend": "gloo",
        }
        call = self._call("/init_weights_update_group", body, "the server to come to a group", 2 * GROUP_S)
        # What torch and SGLang put before its keys, where the backend is gloo.
        await sender.during(call, sender.join((self._name, f"{self._name}/", "cpu/"), ranks))

    async def _call(self, path: str, body: dict[str, Any], what: str, seconds: float = _CALL_S) -> None:
        await self._http.call("POST", path, body, what=what, seconds=seconds)
