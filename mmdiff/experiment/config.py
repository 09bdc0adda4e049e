"""The config of an experiment, a TOML file: data, groups of classes, seeds and draws, backgrounds and methods.

All of it is checked before anything is computed. `docs/experiments.md` describes the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mmdiff.experiment.methods import Method, Table, did_you_mean, read_methods, text, variant_of, whole
from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.documents import read_json, read_toml
from mmdiff.formats.sources.spec import exists, split_spec
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import is_name
from mmdiff.runtime.parameters import MOST_SEED

Group = Literal["validation", "test"]
GROUPS: tuple[Group, ...] = ("validation", "test")
BACKGROUNDS = ("none", "in-domain", "out-of-domain")
DEFAULT_DIMS = 256

# Labels are stored as 32-bit numbers at most.
_MOST_CLASSES = 1 << 31
_MOST_DRAWS = 10_000
_FILES = ("train", "train_labels", "test", "test_labels")


@dataclass(frozen=True)
class Background:
    """The unlabelled images of the graph; `size` limits those of an out-of-domain one, None takes all."""

    kind: str
    size: int | None = None

    def __str__(self) -> str:
        return self.kind if self.size is None else f"{self.kind}:{self.size}"


@dataclass(frozen=True)
class Split:
    """The class numbers of a group."""

    base: tuple[int, ...]
    novel: tuple[int, ...]


@dataclass(frozen=True)
class Config:
    """A checked config. `files` are the paths of the data by role, including `split` if there is one."""

    name: str
    files: dict[str, str]
    groups: dict[Group, Split]
    out_of_domain: tuple[int, ...]
    ns: tuple[int, ...]
    draws: int
    seed: int
    dims: int
    backgrounds: tuple[Background, ...]
    methods: tuple[Method, ...]

    def parameters(self) -> Json:
        """The parameters of the artifact: everything but the paths."""
        # Earlier versions applied row and sinkhorn a second time when they reported L; their results are not taken for these.
        settings = [setting for method in self.methods for setting in method.settings if method.kind == "diffusion"]
        coupled = any(variant_of(options).coupled for setting in settings for options in setting.candidates)
        return {
            **({"eta_applied": "once"} if coupled else {}),
            "name": self.name,
            "groups": {group: {"base": list(split.base), "novel": list(split.novel)} for group, split in self.groups.items()},
            "out_of_domain": list(self.out_of_domain),
            "n": list(self.ns),
            "draws": self.draws,
            "seed": self.seed,
            "dims": self.dims,
            "backgrounds": [str(background) for background in self.backgrounds],
            "methods": [method.given for method in self.methods],
        }

    @property
    def most_neighbors(self) -> int:
        """The largest k of all diffusions; lists for a smaller k are prefixes of those for this one."""
        settings = [setting for method in self.methods for setting in method.settings if method.kind == "diffusion"]
        return max((options["k"] for setting in settings for options in setting.candidates), default=0)


def read_config(path: Path) -> Config:
    """The config in a TOML file; paths in it are relative to its folder."""
    if not exists(path):
        raise UnreadableSource(f"{path}: no such file. Name the TOML config of an experiment (docs/experiments/ has examples).")
    table = Table(path.name, read_toml(path))
    table.refuse_unknown(("name", "n", "draws", "seed", "dims", "backgrounds", "data", "groups", "methods"))
    name = table.get("name", text, "a name for the results", path.stem)
    if not is_name(f"reports/{name}"):
        table.refuse(f"name = {name!r}: expected letters, digits, _ and -, beginning with a letter or digit.")
    files = _files(path, table.table("data"))
    splits = _split_file(files.get("split"))
    groups, out_of_domain = _groups(table, splits, files.get("split"))
    backgrounds = _backgrounds(table, bool(out_of_domain))
    return Config(
        name=name,
        files=files,
        groups=groups,
        out_of_domain=out_of_domain,
        ns=tuple(table.each("n", whole(1), "a number of seeds per novel class, at least 1")),
        draws=table.get("draws", whole(1, _MOST_DRAWS), f"a whole number from 1 to {_MOST_DRAWS:,}", 5),
        seed=table.get("seed", whole(0, MOST_SEED), f"a whole number from 0 to {MOST_SEED:,}", 0),
        dims=table.get("dims", whole(1), "a whole number of at least 1", DEFAULT_DIMS),
        backgrounds=backgrounds,
        methods=read_methods(table),
    )


def _files(path: Path, table: Table) -> dict[str, str]:
    """The data files: any format that can be imported."""
    table.refuse_unknown((*_FILES, "split"))
    files = {key: table.get(key, text, "the path of a file") for key in _FILES}
    if "split" in table:
        files["split"] = table.get("split", text, "the path of a JSON file")
    found = {key: str(path.parent / file) for key, file in files.items()}
    for key, file in found.items():
        if not exists(split_spec(file)[0]):
            table.refuse(f"{key} = {files[key]!r}: no such file. Paths are relative to {path.parent.resolve()}.")
    return found


def _split_file(file: str | None) -> Json:
    """The lists of classes in a JSON file."""
    if file is None:
        return {}
    found = read_json(Path(file))
    if not isinstance(found, dict):
        raise UnreadableSource(f"{file}: a {type(found).__name__}, expected an object that maps names to lists of classes.")
    return found


def _groups(config: Table, splits: Json, file: str | None) -> tuple[dict[Group, Split], tuple[int, ...]]:
    table = config.table("groups")
    table.refuse_unknown((*GROUPS, "out_of_domain"))
    groups: dict[Group, Split] = {}
    for group in GROUPS:
        if group not in table:
            continue
        classes = table.table(group)
        classes.where = f"{config.where}, [groups.{group}]"
        classes.refuse_unknown(("base", "novel"))
        base, novel = (_classes(classes, key, splits, file) for key in ("base", "novel"))
        both = set(base) & set(novel)
        if both:
            classes.refuse(f"class {min(both)} is both base and novel. Leave it out of one of them.")
        groups[group] = Split(base, novel)
    if "validation" not in groups:
        table.refuse("[groups.validation] is missing. Hyper-parameters are chosen there: add it, with base and novel.")
    return groups, _classes(table, "out_of_domain", splits, file) if "out_of_domain" in table else ()


def _classes(table: Table, key: str, splits: Json, file: str | None) -> tuple[int, ...]:
    """Class numbers: a list, or a key of the split file."""
    raw = table.get(
        key, lambda value: value if isinstance(value, str | list) else None, "a list of classes, or a key of data.split"
    )
    if isinstance(raw, str):
        if file is None:
            table.refuse(f"{key} = {raw!r}: [data] has no split file with this name in it. Add split, or list class numbers.")
        if raw not in splits:
            near = did_you_mean(raw, list(splits))
            table.refuse(f"{key} = {raw!r}: not in {Path(file).name}.{near} It has: {', '.join(splits)}.")
        raw = splits[raw]
    if not isinstance(raw, list) or not raw or not all(type(number) is int and 0 <= number < _MOST_CLASSES for number in raw):
        table.refuse(f"{key}: expected a list of class numbers from 0 on, found {str(raw)[:60]}.")
    return tuple(sorted(set(raw)))


def _backgrounds(table: Table, has_out_of_domain: bool) -> tuple[Background, ...]:
    expected = "one of none, in-domain, out-of-domain, out-of-domain:SIZE"
    found = table.each("backgrounds", _background, expected) if "backgrounds" in table else [Background("none")]
    if any(background.kind == "out-of-domain" for background in found) and not has_out_of_domain:
        table.refuse("backgrounds: an out-of-domain background needs classes. Add out_of_domain to [groups].")
    return tuple(found)


def _background(raw: Any) -> Background | None:
    if not isinstance(raw, str):
        return None
    kind, colon, size = raw.partition(":")
    if kind not in BACKGROUNDS or (colon and (kind != "out-of-domain" or not size.isdecimal() or int(size) < 1)):
        return None
    return Background(kind, int(size) if colon else None)
