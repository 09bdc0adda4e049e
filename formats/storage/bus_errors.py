"""SIGBUS in a mapped chunk file: the process ends with a sentence that names the file, instead of with a bare signal.

A file that is shortened while it is mapped has no bytes behind its last pages. An access to them cannot continue, and it can
happen in any kernel of any thread, so there is no exception to raise. The handler is called on the thread that failed. It looks
the address up among the maps of this process, writes the sentence and exits. A SIGBUS elsewhere goes to the handler before.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass

EXIT_CODE = 1

_SA_SIGINFO = 0x4

_SENTENCE = (
    b": the file was shortened while it was in use, or its disk fails. The run has ended, and published artifacts are as "
    b"they were. Verify the store, and make again what is damaged.\n"
)

_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    """`struct sigaction` of Linux with glibc."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Information(ctypes.Structure):
    """The beginning of `siginfo_t`: the address comes after three numbers and four bytes of padding."""

    _fields_ = (("number", ctypes.c_int), ("error", ctypes.c_int), ("code", ctypes.c_int), ("address", ctypes.c_void_p))


@dataclass(frozen=True)
class _Map:
    address: int
    size: int
    chunk_bytes: int
    path: Callable[[int], os.PathLike[str]]


_libc = ctypes.CDLL(None, use_errno=True)
_maps: dict[int, _Map] = {}
_before = _Action()
_installing = threading.Lock()
_installed = False


def report_bus_errors_in(address: int, size: int, chunk_bytes: int, path: Callable[[int], os.PathLike[str]]) -> None:
    """Reports a SIGBUS in an address range by the file of its chunk, which `path` returns."""
    _maps[address] = _Map(address, size, chunk_bytes, path)
    global _installed
    with _installing:
        if not _installed:
            action = _Action(ctypes.cast(_handler, ctypes.c_void_p).value, flags=_SA_SIGINFO)
            _libc.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(_before))
            _installed = True


def forget_map(address: int) -> None:
    """Ends the reports for an address range that is about to be unmapped."""
    _maps.pop(address, None)


def _handle(_number: int, information: int, _context: int) -> None:
    address = _Information.from_address(information).address or 0
    for found in list(_maps.values()):
        if found.address <= address < found.address + found.size:
            file = os.fsencode(found.path((address - found.address) // found.chunk_bytes))
            os.write(2, b"mmdiff: " + file + _SENTENCE)
            os._exit(EXIT_CODE)
    # Not one of our maps: the instruction runs again, and fails into the handler before.
    _libc.sigaction(signal.SIGBUS, ctypes.byref(_before), None)


_handler = _Handler(_handle)
