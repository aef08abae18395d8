"""The past beyond the console's memory, from the services' metrics in Prometheus.

    steps of a picture ──query_range, one for each field──▶ a count for each step that Prometheus knows

The console's server queries, never a browser. Errors are reported in words, beside the rest of the picture.
"""

import asyncio
import json
import math
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import urlencode

import structlog
from duetime_core.clock import Clock

from duetime_console.overview.picture import STEPS_MAX
from duetime_console.overview.samples import DEAD, LATE, RESTORED

log = structlog.get_logger()

# Prometheus needs two scrapes within a step to see a counter grow.
STEP_MS_MIN = 60_000
# Bytes of one answer; time for all queries of a picture.
ANSWER_BYTES_MAX = 1024 * 1024
ASK_S_MAX = 3.0
# Pictures with concurrent queries; others wait.
ASKING_MAX = 4
KEPT_MAX = 64
KEPT_MS, FAULT_KEPT_MS = 15_000, 5_000
WORDS_MAX = 200
_PIECE_BYTES = 64 * 1024
# Delivered and dead messages within a step; for each lane the highest number of messages due and undelivered at one
# scrape. The highest of all lanes at one scrape would need a subquery, which reads fewer times the longer a step is.
QUERIES = {
    RESTORED: "sum(increase(duetime_store_lane_restored_total{%(labels)s}[%(step)s]))",
    DEAD: "sum(increase(duetime_retry_dead_letters_total{%(labels)s}[%(step)s]))",
    LATE: 'sum(max_over_time(duetime_store_lane_due_count{within="now",%(labels)s}[%(step)s]))',
}


class PastCounts(NamedTuple):
    """Counts by field, then by start of step (Unix ms); or the reason why there are none, in words."""

    counts: Mapping[str, Mapping[int, int]] = {}
    fault: str = ""


class _PrometheusError(Exception):
    """Prometheus returned an error, or no answer."""


class Prometheus:
    """One server."""

    def __init__(self, url: str, labels: str, clock: Clock) -> None:
        """`url`: up to `/api/v1`. `labels`: select the cluster if Prometheus has several, in query syntax."""
        self._url = f"{url.rstrip('/')}/api/v1/query_range"
        self._labels = labels
        self._clock = clock
        self._room = asyncio.Semaphore(ASKING_MAX)
        self._kept: OrderedDict[tuple[int, int, int], tuple[float, PastCounts]] = OrderedDict()
        self.ask_count = 0
        self.failed_count = 0

    async def between(self, from_ms: int, step_ms: int, steps: int) -> PastCounts:
        """The past of at most STEPS_MAX steps, each of STEP_MS_MIN or longer."""
        steps = min(steps, STEPS_MAX + 1)
        key = from_ms, step_ms, steps
        now_ms = self._clock.monotonic_ms()
        kept = self._kept.get(key)
        if kept is not None and now_ms - kept[0] < (FAULT_KEPT_MS if kept[1].fault else KEPT_MS):
            return kept[1]
        found = await self._ask(from_ms, step_ms, steps)
        self._kept[key] = self._clock.monotonic_ms(), found
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return found

    async def _ask(self, from_ms: int, step_ms: int, steps: int) -> PastCounts:
        self.ask_count += 1
        deadline_ms = self._clock.monotonic_ms() + ASK_S_MAX * 1_000
        times = {
            # A count belongs to the step that ends there.
            "start": (from_ms + step_ms) / 1_000,
            "end": (from_ms + step_ms * steps) / 1_000,
            "step": step_ms / 1_000,
            "timeout": f"{ASK_S_MAX:g}s",
        }
        fields = list(QUERIES)
        try:
            async with asyncio.timeout(ASK_S_MAX), self._room:
                answers = await asyncio.gather(
                    *(
                        asyncio.to_thread(self._fetch, {**times, "query": self._query(one, step_ms)}, deadline_ms)
                        for one in fields
                    )
                )
            return PastCounts({name: _counts(answer, step_ms) for name, answer in zip(fields, answers, strict=True)})
        except TimeoutError:
            text = f"no answer from Prometheus within {ASK_S_MAX:g} s"
        except _PrometheusError as error:
            text = str(error)
        self.failed_count += 1
        log.debug("history not queried", why=text)
        return PastCounts(fault=text)

    def _query(self, field: str, step_ms: int) -> str:
        return QUERIES[field] % {"labels": self._labels, "step": f"{step_ms}ms"}

    def _fetch(self, asked: Mapping[str, Any], deadline_ms: float) -> Any:
        """The JSON of the answer; on a thread, which ends soon after the deadline.

        Raises: _PrometheusError, TimeoutError.
        """
        opener = urllib.request.build_opener(_QueryRedirectRejecter)
        try:
            with opener.open(f"{self._url}?{urlencode(asked)}", timeout=ASK_S_MAX) as answer:
                return json.loads(self._read(answer, deadline_ms))
        except urllib.error.HTTPError as error:
            with error:
                raise _PrometheusError(f"Prometheus answers {error.code}: {self._why(error, deadline_ms)}") from error
        except TimeoutError:
            raise
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                raise reason from error
            why = (getattr(reason, "strerror", None) or str(reason) or type(error).__name__)[:WORDS_MAX]
            raise _PrometheusError(f"Prometheus does not answer: {why.lower()}") from error
        except (ValueError, RecursionError) as error:
            raise _PrometheusError("the server is not Prometheus: its answer is not JSON") from error

    def _read(self, answer: Any, deadline_ms: float) -> bytes:
        """Raises: OSError, TimeoutError, _PrometheusError: the answer is too long."""
        data = bytearray()
        while piece := answer.read1(_PIECE_BYTES):
            data += piece
            if len(data) > ANSWER_BYTES_MAX:
                raise _PrometheusError(f"Prometheus's answer exceeds {ANSWER_BYTES_MAX:,} bytes")
            if self._clock.monotonic_ms() > deadline_ms:
                raise TimeoutError
        return bytes(data)

    def _why(self, error: urllib.error.HTTPError, deadline_ms: float) -> str:
        """Prometheus's error text, or HTTP's."""
        try:
            text = json.loads(self._read(error, deadline_ms))["error"]
        except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError, _PrometheusError):
            text = error.reason
        return str(text)[:WORDS_MAX]


class _QueryRedirectRejecter(urllib.request.HTTPRedirectHandler):
    """Rejects redirects: figures come only from the configured address."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


def _counts(answer: Any, step_ms: int) -> dict[int, int]:
    """Counts by start of step. Raises: _PrometheusError."""
    found = {}
    try:
        for series in answer["data"]["result"]:
            for at_s, text in series["values"]:
                value = float(text)
                if math.isfinite(value):
                    found[round(at_s * 1_000) - step_ms] = max(0, round(value))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _PrometheusError("the server is not Prometheus: its answer has no matrix") from error
    return found
