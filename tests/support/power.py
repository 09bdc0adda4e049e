"""Power loss: records the file operations of a stage, and makes the states in which a power cut could leave the store.

The model is that of ALICE and CrashMonkey: a crash keeps what was synced, and any part of the rest, in any order. `fsync` of a
file keeps its bytes and its size, `fsync` of a folder its entries. Other writes may be lost, whole or in sectors; other
changes of folders may be lost one by one, but a rename happens whole or not at all.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from tests.support.injection import full_path

_SECTOR = 512


@dataclass(eq=False)
class Node:
    """A file, folder or link, whatever its name is at the moment; `target` is that of a link."""

    kind: Literal["file", "folder", "link"]
    target: str = ""


@dataclass(frozen=True)
class Written:
    """Bytes written to a file."""

    node: Node
    at: int
    data: bytes


@dataclass(frozen=True)
class Sized:
    """A file cut or extended to a size."""

    node: Node
    size: int


@dataclass(frozen=True)
class Entries:
    """Entries of folders that change together: names that lead to a node, or to nothing any more."""

    changes: tuple[tuple[Node, str, Node | None], ...]


@dataclass(frozen=True)
class Synced:
    node: Node


Operation = Written | Sized | Entries | Synced


@dataclass
class Disk:
    """The content of files and folders."""

    root: Node
    files: dict[Node, bytearray] = field(default_factory=dict)
    folders: dict[Node, dict[str, Node]] = field(default_factory=dict)

    def copy(self) -> Disk:
        files = {node: bytearray(content) for node, content in self.files.items()}
        return Disk(self.root, files, {node: dict(entries) for node, entries in self.folders.items()})

    def apply(self, operation: Operation) -> None:
        if isinstance(operation, Written):
            content, end = self.files.setdefault(operation.node, bytearray()), operation.at + len(operation.data)
            content.extend(bytes(max(0, end - len(content))))
            content[operation.at : end] = operation.data
        elif isinstance(operation, Sized):
            content = self.files.setdefault(operation.node, bytearray())
            del content[operation.size :]
            content.extend(bytes(operation.size - len(content)))
        elif isinstance(operation, Entries):
            for folder, name, node in operation.changes:
                entries = self.folders.setdefault(folder, {})
                if node is None:
                    entries.pop(name, None)
                else:
                    entries[name] = node

    def tree(self) -> dict[str, bytes | str]:
        """All entries below the root, as `stores.tree` gives them."""
        found: dict[str, bytes | str] = {}

        def visit(folder: Node, prefix: str) -> None:
            for name, node in self.folders.get(folder, {}).items():
                key = f"{prefix}{name}"
                if node.kind == "file":
                    found[key] = bytes(self.files.get(node, b""))
                elif node.kind == "link":
                    found[key] = f"-> {node.target}"
                else:
                    found[key] = "folder"
                    visit(node, f"{key}/")

        visit(self.root, "")
        return found


class Recorder:
    """Records the changes of files below a folder by this process, and follows them on a disk of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.operations: list[Operation] = []
        self.start = Disk(Node("folder"))
        self._take(folder, self.start.root)
        self.now = self.start.copy()
        self._lock = threading.RLock()

    @contextmanager
    def installed(self) -> Iterator[None]:
        after: dict[str, Callable[..., None]] = {
            "open": lambda _, path, flags, *__, **more: self._opened(path, flags, more.get("dir_fd")),
            "write": lambda count, descriptor, data: self._wrote(
                descriptor, os.lseek(descriptor, 0, os.SEEK_CUR) - count, data, count
            ),
            "pwrite": lambda count, descriptor, data, at: self._wrote(descriptor, at, data, count),
            "posix_fallocate": lambda _, descriptor, at, size: self._sized(descriptor, at + size, least=True),
            "ftruncate": lambda _, descriptor, size: self._sized(descriptor, size),
            "truncate": lambda _, path, size: self._sized(path, size),
            "fsync": lambda _, descriptor: self._synced(descriptor),
            "rename": lambda _, source, target: self._moved(source, target),
            "replace": lambda _, source, target: self._moved(source, target),
            "link": lambda _, source, path, **__: self._linked(source, path),
            "symlink": lambda _, target, path, *__: self._made(path, Node("link", os.fsdecode(target))),
            "mkdir": lambda _, path, *__, **more: self._made(path, Node("folder"), more.get("dir_fd")),
            "unlink": lambda _, path, **more: self._removed(path, more.get("dir_fd")),
            "rmdir": lambda _, path, **more: self._removed(path, more.get("dir_fd")),
        }
        originals = {name: getattr(os, name) for name in after}

        def wrapped(name: str) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                with self._lock:
                    result = originals[name](*args, **kwargs)
                    after[name](result, *args, **kwargs)
                    return result

            return call

        for name in after:
            setattr(os, name, wrapped(name))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(os, name, original)

    def _take(self, folder: Path, node: Node) -> None:
        """Takes over what is in a folder."""
        entries = self.start.folders.setdefault(node, {})
        for path in folder.iterdir():
            if path.is_symlink():
                entries[path.name] = Node("link", str(path.readlink()))
            elif path.is_dir():
                entries[path.name] = Node("folder")
                self._take(path, entries[path.name])
            else:
                entries[path.name] = Node("file")
                self.start.files[entries[path.name]] = bytearray(path.read_bytes())

    def _add(self, operation: Operation) -> None:
        self.operations.append(operation)
        self.now.apply(operation)

    def _place(self, path: Any, dir_fd: int | None = None) -> tuple[Node, str] | None:
        """The folder and the name of a path; None for paths elsewhere."""
        full = full_path(path, dir_fd)
        if not full.startswith(self.folder + "/"):
            return None
        *parents, name = full[len(self.folder) + 1 :].split("/")
        node = self.now.root
        for parent in parents:
            if parent not in self.now.folders.get(node, {}):
                return None
            node = self.now.folders[node][parent]
        return node, name

    def _find(self, path: Any) -> Node | None:
        if full_path(path) == self.folder:
            return self.now.root
        place = self._place(path)
        return None if place is None else self.now.folders.get(place[0], {}).get(place[1])

    def _opened(self, path: Any, flags: int, dir_fd: int | None) -> None:
        place = self._place(path, dir_fd) if flags & os.O_CREAT else None
        if place is None:
            return
        known = self.now.folders.get(place[0], {}).get(place[1])
        if known is None:
            self._add(Entries(((*place, Node("file")),)))
        elif flags & os.O_TRUNC:
            self._add(Sized(known, 0))

    def _wrote(self, descriptor: int, at: int, data: Any, count: int) -> None:
        node = self._find(descriptor)
        if node is not None:
            self._add(Written(node, at, bytes(memoryview(data).cast("B")[:count])))

    def _sized(self, file: Any, size: int, least: bool = False) -> None:
        node = self._find(file)
        if node is not None and not (least and size <= len(self.now.files.get(node, b""))):
            self._add(Sized(node, size))

    def _synced(self, descriptor: int) -> None:
        node = self._find(descriptor)
        if node is not None:
            self._add(Synced(node))

    def _made(self, path: Any, node: Node, dir_fd: int | None = None) -> None:
        place = self._place(path, dir_fd)
        if place is not None:
            self._add(Entries(((*place, node),)))

    def _linked(self, source: Any, path: Any) -> None:
        node = self._find(source)
        if node is not None:
            self._made(path, node)

    def _removed(self, path: Any, dir_fd: int | None) -> None:
        place = self._place(path, dir_fd)
        if place is not None:
            self._add(Entries(((*place, None),)))

    def _moved(self, source: Any, target: Any) -> None:
        old, new = self._place(source), self._place(target)
        if old is not None and new is not None:
            self._add(Entries(((*old, None), (*new, self.now.folders[old[0]][old[1]]))))


def is_removal(operation: Operation) -> bool:
    """Whether an operation only takes names away."""
    return isinstance(operation, Entries) and all(node is None for _, _, node in operation.changes)


Keep = Callable[[Operation], float]
"""The share of an operation that a crash keeps: 0, 1, or something between for a random part of the bytes written."""


def crash(start: Disk, operations: list[Operation], keep: Keep, draw: random.Random) -> Disk:
    """The disk after a crash behind the last operation; `keep` decides about operations that are not synced."""
    disk = start.copy()
    synced: set[Node] = set()
    durable: list[bool] = []
    for operation in reversed(operations):
        if isinstance(operation, Synced):
            synced.add(operation.node)
        touched = [folder for folder, _, _ in operation.changes] if isinstance(operation, Entries) else [operation.node]
        # A rename that changes two folders is one entry in the journal of the file system.
        durable.append(any(node in synced for node in touched))
    for operation, safe in zip(operations, reversed(durable), strict=True):
        share = 1.0 if safe else keep(operation)
        if share >= 1:
            disk.apply(operation)
        elif share > 0 and isinstance(operation, Written):
            for offset in range(0, len(operation.data), _SECTOR):
                if draw.random() < share:
                    sector = operation.data[offset : offset + _SECTOR]
                    disk.apply(Written(operation.node, operation.at + offset, sector))
    return disk


def policies(draw: random.Random, count: int) -> Iterator[tuple[str, Keep]]:
    """Ways to lose what is not synced: all of it, either kind, and `count` random parts."""
    yield "nothing unsynced is kept", lambda _: 0.0
    yield "only folders are kept", lambda operation: float(isinstance(operation, Entries))
    yield "only files are kept", lambda operation: float(not isinstance(operation, Entries))
    yield "bytes are lost", lambda operation: float(not isinstance(operation, Written))
    yield "only removals are kept", lambda operation: float(is_removal(operation))
    for number in range(count):
        share = draw.choice((0.1, 0.5, 0.9))
        torn = draw.choice((0.0, 0.5))
        choices = random.Random(draw.getrandbits(64))

        def some(_: Operation, share: float = share, torn: float = torn, choices: random.Random = choices) -> float:
            if choices.random() < torn:
                return choices.random()
            return float(choices.random() < share)

        yield f"random part {number} (keeps {share:.0%}, tears {torn:.0%})", some


def digest(tree: dict[str, bytes | str]) -> bytes:
    state = blake2b(digest_size=16)
    for key, value in sorted(tree.items()):
        content = value if isinstance(value, bytes) else value.encode()
        state.update(f"{key}\0{len(content)}\0{isinstance(value, bytes)}".encode())
        state.update(content)
    return state.digest()


def lay_out(tree: dict[str, bytes | str], folder: Path) -> None:
    """Makes the files, folders and links of a tree in a folder, in place of what is there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for key, value in tree.items():
        path = folder / key
        if isinstance(value, bytes):
            path.write_bytes(value)
        elif value == "folder":
            path.mkdir()
        else:
            path.symlink_to(value.removeprefix("-> "))
