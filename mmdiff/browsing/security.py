"""Access to the page: only for a browser on this machine that was given the address with its token.

Other pages that the same browser shows can send requests here too. They do not know the token; beyond that, the Host header
must be this server (a foreign name that was made to lead here is refused), and whatever changes something must come from the
page itself. Responses forbid the page to load or send anything elsewhere.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

TOKEN_BYTES = 32

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-store"),
)
"""Headers of every response."""


class Refused(Exception):
    """A request that is not answered: its status, and why."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


def new_token() -> str:
    """A token that cannot be guessed, of characters that stand in an address."""
    return secrets.token_urlsafe(TOKEN_BYTES)


@dataclass(frozen=True)
class Guard:
    """Decides which requests are answered."""

    port: int
    token: str
    hosts: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        hosts = {f"{name}:{self.port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        # Browsers leave the port of http out.
        hosts |= {"127.0.0.1", "localhost", "[::1]"} if self.port == 80 else set()
        object.__setattr__(self, "hosts", frozenset(hosts))

    def admit(self, scope: Any) -> str:
        """The path below the token of a request; raises Refused unless it may be answered."""
        headers = scope["headers"]
        host = _only(headers, b"host")
        if host is None or host.lower() not in self.hosts:
            raise Refused(403, "This server answers only at the address that it printed when it was started.")
        asked: str = scope["path"]
        _, token, path = (*asked.split("/", 2), "", "")[:3]
        if not secrets.compare_digest(token.encode(errors="replace"), self.token.encode()):
            raise Refused(404, "Nothing is here. Open the address that was printed when the page was started.")
        site = _only(headers, b"sec-fetch-site")
        # A link to the page may be anywhere; what is below it is only asked for by the page.
        if path and site not in (None, "same-origin", "none"):
            raise Refused(403, "Another page asked for this. Only the page itself may.")
        if scope["method"] not in ("GET", "HEAD"):
            origin = _only(headers, b"origin")
            if any(name == b"origin" for name, _ in headers) and origin not in {f"http://{each}" for each in self.hosts}:
                raise Refused(403, "Another page sent this. Only the page itself may change labels.")
            if origin is not None and origin != f"http://{host.lower()}":
                raise Refused(403, "The page was opened at another address than the one this was sent to. Reload it.")
        return "/" + path


def _only(headers: Any, wanted: bytes) -> str | None:
    """The value of a header; None where it is absent, or there more than once."""
    found = [value.decode("latin-1") for name, value in headers if name == wanted]
    return found[0] if len(found) == 1 else None
