"""Vega-Lite spec -> PNG in a process of its own, so that no chart can end, stop or swell the kernel.

vl-convert aborts its process for a control character in a drawn text, also one that an expression made; for a picture
too large for its buffers, a scale with 1e8 ticks, or a spec nested 5,000 deep; and it draws some specs for hours. The
process starts with the first picture, serves all of them, and is started again after one that ended it.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import struct
import subprocess
import sys
import threading

TIMEOUT_S = 60.0  # of one picture; the book's take 0.4 s
MAX_SPEC_BYTES = 16 * 2**20
MAX_PIXELS = 60_000_000
HEADER = struct.Struct(">?Q")  # of an answer: whether it is a picture, and how many bytes follow

_lock, _process = threading.Lock(), None


class NoPicture(ValueError):
    """A chart that can't be drawn as a picture; the message is one sentence that says why."""


def draw(spec: dict, vegalite: str, scale: float) -> bytes:
    """The PNG of a spec of plain JSON values; vegalite: the version to draw with, scale: pixels per pixel of the page.

    Raises NoPicture for a spec that Vega-Lite refuses, that takes longer than TIMEOUT_S, or that ends the process, and
    RecursionError for one that is nested too deeply.
    """
    request = json.dumps([spec, vegalite, scale, TIMEOUT_S], allow_nan=False).encode()
    if len(request) > MAX_SPEC_BYTES:
        raise NoPicture(
            f"No picture of this chart: its spec and data take {len(request) / 2**20:,.0f} MiB, and at most "
            f"{MAX_SPEC_BYTES // 2**20} MiB are drawn; aggregate or sample the rows first."
        )
    drawn, answer = _ask(request)
    if not drawn:
        raise NoPicture(f"No picture of this chart: {answer.decode()}.")
    width, height = struct.unpack(">II", answer[16:24])
    if width * height > MAX_PIXELS:
        raise NoPicture(
            f"No picture of this chart: it would have {width:,} x {height:,} pixels, and at most "
            f"{MAX_PIXELS:,} are kept; make it smaller."
        )
    return answer


def _ask(request: bytes) -> tuple[bool, bytes]:
    """Send a request to the process and wait for its answer: whether that is a picture, and its bytes or the reason."""
    global _process
    with _lock:
        process = _running()
        try:
            process.stdin.write(struct.pack(">Q", len(request)) + request)
            process.stdin.flush()
            if len(header := process.stdout.read(HEADER.size)) == HEADER.size:
                drawn, length = HEADER.unpack(header)
                if len(answer := process.stdout.read(length)) == length:
                    return drawn, answer
        except BrokenPipeError:
            pass  # it ended before it had read the request
        except BaseException:  # an interrupt: the answer that is under way belongs to nobody
            _process = None
            process.kill()
            process.wait()
            raise
        code = process.wait()
    if code == -signal.SIGALRM:
        return False, f"drawing it took longer than {TIMEOUT_S:g} s; draw fewer rows or marks".encode()
    ended = f"the process that draws it ended with status {code}"
    return False, f"{ended}, as too many or too large marks make it, or a control character in a text".encode()


def _running() -> subprocess.Popen:
    """The process that draws, started if there is none, it has ended, or this process was forked from its owner."""
    global _process
    if _process is None or _process.owner != os.getpid() or _process.poll() is not None:
        _process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt of the kernel is not meant for it
        )
        _process.owner = os.getpid()
    return _process


@atexit.register
def _end() -> None:
    if _process is not None and _process.owner == os.getpid():
        _process.kill()
        _process.wait()


def serve(requests, answers) -> None:
    """Answer requests until there are none; an alarm ends this process if one of them takes too long."""
    import vl_convert

    while len(header := requests.read(8)) == 8:
        spec, vegalite, scale, seconds = json.loads(requests.read(struct.unpack(">Q", header)[0]))
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            drawn, answer = True, vl_convert.vegalite_to_png(spec, vl_version=vegalite, scale=scale)
        except Exception as error:
            drawn, answer = False, _reason(str(error)).encode()
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(HEADER.pack(drawn, len(answer)) + answer)
        answers.flush()


def _reason(message: str) -> str:
    """What a library says, without the stack of its JavaScript, as part of a sentence."""
    lines = [line.strip() for line in message.split("\n") if line.strip() and not line.lstrip().startswith("at ")]
    reason = " ".join(lines).removeprefix("Vega-Lite to PNG conversion failed:").strip()
    return f"Vega-Lite refuses its spec ({reason if len(reason) <= 200 else reason[:199] + '…'})"


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    serve(sys.stdin.buffer, answers)
