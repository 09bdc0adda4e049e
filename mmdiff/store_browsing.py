"""The page of a store on this machine. `mmdiff.store.Store` adds the rest."""

from __future__ import annotations

from collections.abc import Callable

from mmdiff.formats.errors import BadOption, Call, Parameter
from mmdiff.store_scoring import StoreScorer


class StoreBrowser(StoreScorer):
    """The part of `Store` that serves a page."""

    def browse(
        self,
        *,
        port: int = 0,
        images: str | None = None,
        texts: str | None = None,
        on_ready: Callable[[str], None] | None = None,
        spell: Callable[[Parameter | Call], str] | None = None,
    ) -> None:
        """Serves a page to look at the store and to label in it, until it is interrupted (Ctrl-C).

        The page is for browsers on this machine that know its address, which has a secret token in it. Labels are recorded as
        by `label`, at once; after a pause they spread again as by `diffuse`, and the predictions on the page are new.

        Args:
            port: the port to listen on; 0 takes a free one.
            images: a folder with a picture for each id, or a path with {id} or {row} in it.
            texts: a column with a text for each row of the collection, such as "reviews.parquet::text".
            on_ready: called with the address, from this thread, when the page can be opened; None prints it.
            spell: writes parameters and calls in messages; None writes them as in Python.

        >>> import mmdiff, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(np.eye(4))
        ...     try:
        ...         store.browse(images=folder + "/no-such-folder")
        ...     except mmdiff.errors.BadOption as error:
        ...         print(error.parameter)
        images
        """
        from mmdiff.browsing.stage import Request, browse
        from mmdiff.kinds import KINDS

        if on_ready is not None and not callable(on_ready):
            raise BadOption(Parameter("on_ready", on_ready), ": expected a function.")
        request = Request(port, images, texts, self._memory, spell)
        browse(self._writable(), request, KINDS, print if on_ready is None else on_ready)
