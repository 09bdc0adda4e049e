"""`mmdiff label`: labels of rows that come and go."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mmdiff import text
from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, StorePlace, open_store
from mmdiff.errors import BadOption, Parameter


def command(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]",
            help="A file with a column of ids and one of labels: `.csv`, `.parquet`, or JSON lines (`.jsonl`). "
            "An empty label removes the label of its row.",
            show_default=False,
        ),
    ] = None,
    ids: Annotated[
        str | None, typer.Option("--ids", metavar="NAME", help="The column of ids in the file.", show_default="id or ids")
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels", metavar="NAME", help="The column of labels in the file.", show_default="label, labels or class"
        ),
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            "--separator", metavar="TEXT", help="Text between several labels of a row in a CSV file.", show_default=False
        ),
    ] = None,
    id_: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="ID", help="A row to label instead of a file; may be repeated.", show_default=False),
    ] = None,
    as_: Annotated[
        list[str] | None,
        typer.Option(
            "--as",
            metavar="CLASS",
            help="The label of the rows; with one --id, several are several labels of the row; with several, one for each.",
            show_default=False,
        ),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the labels of the rows.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take the last batch of labels back.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the labels, with the batch and file that each is from.")] = False,
    holdout: Annotated[
        float | None,
        typer.Option("--holdout", metavar="SHARE", help="Keep this share of the labels out for good; 0 ends it."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Random seed of --holdout.")] = 0,
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Label rows of the collection, by id; or list labels, take the last batch back, or hold some out.

    A later label replaces an earlier one, also one that the row was imported with. Graphs stay as they are: only
    `mmdiff diffuse` has to run again. Labels are kept, with their history, in labels/current.
    """
    asked = {
        "FILE": file is not None,
        "--id": bool(id_),
        "--undo": undo,
        "--list": list_,
        "--holdout": holdout is not None,
    }
    chosen = [name for name, given in asked.items() if given]
    if len(chosen) != 1:
        found = " with ".join(chosen) if chosen else "nothing to do"
        raise typer.BadParameter(f"{found}: give one of {', '.join(asked)}.")
    opened = open_store(store)
    if list_:
        _show_labels(opened.labels(), json)
        return
    if undo:
        summary = opened.undo_label()
    elif holdout is not None:
        summary = opened.hold_out(holdout, seed=seed)
    elif file is not None:
        _refuse_without_ids(as_, remove)
        summary = opened.label(file, ids=ids, labels=labels, separator=separator)
    else:
        summary = opened.label(_pairs(id_ or [], as_ or [], remove))
    if json:
        show.as_json(summary)
        return
    _show(summary, undo=undo, holdout=holdout)


def _refuse_without_ids(as_: list[str] | None, remove: bool) -> None:
    if as_ or remove:
        given = Parameter("as", as_[0]) if as_ else Parameter("remove", True)
        raise BadOption(given, " goes with ", Parameter("id"), ", not with a file. Leave one of them out.")


def _pairs(ids: list[str], classes: list[str], remove: bool) -> dict[str, list[str] | None]:
    """The labels of each row, as --id and --as say."""
    if remove == bool(classes):
        problem = "both a label and its removal" if remove else "no label"
        raise BadOption(
            Parameter("id", ids[0]),
            f": {problem}. Give ",
            Parameter("as"),
            " with a class, or ",
            Parameter("remove", True),
            ".",
        )
    if len(set(ids)) < len(ids):
        twice = next(each for each in ids if ids.count(each) > 1)
        raise BadOption(Parameter("id", twice), ": given twice. Give each row once; with one row, several labels may follow.")
    if remove:
        return dict.fromkeys(ids)
    if len(ids) == 1:
        return {ids[0]: classes}
    if len(classes) not in (1, len(ids)):
        raise BadOption(
            Parameter("as"),
            f": {len(classes)} labels for {len(ids)} rows. Give one for all, or one for each in the same order.",
        )
    return {each: [classes[place % len(classes)]] for place, each in enumerate(ids)}


def _show(summary: dict[str, Any], *, undo: bool, holdout: float | None) -> None:
    for sentence in summary["notes"]:
        show.note(text.printable(sentence))
    total = f"{text.count(summary['labelled'], 'row')} labelled in {text.count(summary['batches'], 'batch', 'batches')}"
    if not summary["changed"]:
        show.result(f"{summary['artifact']}: nothing new, {total}")
        return
    if holdout is not None:
        share = f"{summary['holdout']:.1%} of the labels are held out" if summary["holdout"] else "no labels are held out"
        show.result(f"{summary['artifact']}: {share}")
    elif undo:
        show.result(f"{summary['artifact']}: the last batch is taken back; {total}")
    else:
        done = [f"{text.count(summary['rows'], 'row')} labelled"] if summary["rows"] or not summary["removed"] else []
        done += [f"labels of {text.count(summary['removed'], 'row')} removed"] if summary["removed"] else []
        show.result(f"{summary['artifact']}: {', '.join(done)}; {total} in all")


def _show_labels(found: dict[str, Any], json: bool) -> None:
    if json:
        show.as_json(found)
        return
    if not found["labels"]:
        show.result("no labels were recorded; those that rows were imported with are in descriptors/...")
    else:
        rows = []
        for row in found["labels"]:
            before = ["; ".join(each["labels"]) or "(none)" for each in row["replaced"]]
            labels = "; ".join(row["labels"]) or "(removed)"
            rows.append([str(row["id"]), labels, str(row["batch"]), row["time"], row["source"], ", then ".join(before)])
        show.table(["id", "label", "batch", "recorded", "from", "replaces"], rows, right=(2,))
    if found["holdout"]:
        show.result(f"{found['holdout']:.1%} of all labels are held out (seed {found['seed']})")
