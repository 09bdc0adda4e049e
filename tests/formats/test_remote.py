"""Remote stores: a fetched artifact has the bytes that were published, or is not published at all."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from typer.testing import CliRunner, Result

from mmdiff.cli import app
from mmdiff.formats.errors import Unreachable
from mmdiff.formats.remote import fetching
from mmdiff.formats.remote.fetching import fetch, with_inputs
from mmdiff.formats.remote.remote import Remote
from mmdiff.formats.storage import seam
from mmdiff.formats.store.array_writer import ArrayWriter
from mmdiff.formats.store.store import Store
from mmdiff.importing.stage import import_descriptors
from mmdiff.runtime.progress import silent
from tests.support.remotes import Flaky, Objects, Requests, interrupted_at_third_chunk, put, s3_server, upload, web_server
from tests.support.stores import SMALL_CHUNKS, Inputs, chunks_of, problems, tree

BACKGROUND, SEEDS, PCA = "descriptors/background", "descriptors/seeds", "models/pca"
CHUNK = f"{BACKGROUND}/vectors/c.1.0"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, quick_folder: Path) -> Iterator[None]:
    """No pauses, no cache in the home folder, and nothing left in memory."""
    monkeypatch.setattr(fetching, "PAUSE_SECONDS", 0)
    monkeypatch.setenv("MMDIFF_CACHE", str(quick_folder / "cache"))
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The URL of a new bucket on the local S3 server."""
    for key, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(key, value)
    url = f"s3://{request.node.name.replace('_', '-')[5:60]}"
    files, name = fsspec.url_to_fs(url, skip_instance_cache=True)
    files.mkdir(name)
    return url


@pytest.fixture
def requests() -> Iterator[Requests]:
    found, logger = Requests(), logging.getLogger("werkzeug")
    logger.addHandler(found)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(found)


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[bytes], bytes], int], None]:
    fsspec.register_implementation("flaky", Flaky, clobber=True)

    def spoil(how: Callable[[bytes], bytes], times: int) -> None:
        monkeypatch.setattr(Flaky, "asked", {})
        monkeypatch.setattr(Flaky, "spoil", staticmethod(how))
        monkeypatch.setattr(Flaky, "times", times)

    return spoil


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def chunks(store: Store, *names: str) -> int:
    return sum(entry.spec.chunks for name in names for entry in store.open_artifact(name).manifest.arrays.values())


def flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def refused(outcome: Result, code: int, *parts: str) -> None:
    """Asserts that an error is one line with all of these texts."""
    assert outcome.exit_code == code, outcome.output
    assert outcome.stderr.startswith("mmdiff: ")
    assert outcome.stderr.count("\n") == 1
    for part in parts:
        assert part in outcome.stderr


def test_a_store_on_s3_comes_back_byte_for_byte_and_comes_once(
    store: Store, bucket: str, quick_folder: Path, requests: Requests
) -> None:
    url, here = upload(store.path, f"{bucket}/deep/store"), quick_folder / "here"
    outcome = run("fetch", url, "--store", here, "--json")
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stderr == ""
    assert tree(here) == tree(store.path)
    assert problems(Store.open(here)) == []
    found = json.loads(outcome.stdout)
    assert [item["artifact"] for item in found["artifacts"]] == store.names()
    assert found["bytes"] == sum(store.open_artifact(name).manifest.bytes_on_disk for name in store.names())
    assert len(requests.chunks) == len(set(requests.chunks)) == chunks(store, *store.names())

    requests.lines.clear()
    again = run("fetch", url, "--store", here)
    assert again.exit_code == 0
    assert again.stdout.count("already here") == 3
    assert requests.lines
    assert requests.chunks == []


@pytest.mark.parametrize("objects", ["all", "metadata", "none"])
def test_a_store_is_read_however_much_of_its_objects_was_copied(objects: Objects, store: Store, quick_folder: Path) -> None:
    url = upload(store.path, "memory://store", objects)
    assert run("fetch", f"{url}/", "--store", quick_folder / "here").exit_code == 0
    assert tree(quick_folder / "here") == tree(store.path)


def test_a_web_server_that_knows_no_ranges_will_do(store: Store, quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "BLOCK_BYTES", 1000)
    with web_server(store.path) as url:
        outcome = run("fetch", url, "--store", quick_folder / "here")
    assert outcome.exit_code == 0, outcome.output
    assert tree(quick_folder / "here") == tree(store.path)


def test_chunks_that_come_in_pieces_are_the_same(store: Store, quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "BLOCK_BYTES", 4097)
    assert run("fetch", f"file://{store.path}", "--store", quick_folder / "here").exit_code == 0
    assert tree(quick_folder / "here") == tree(store.path)


def test_only_what_is_named_comes_and_its_inputs_if_asked_for(store: Store, quick_folder: Path) -> None:
    url = upload(store.path, "memory://store")
    assert run("fetch", url, SEEDS, "--store", quick_folder / "one").exit_code == 0
    assert Store.open(quick_folder / "one").names() == [SEEDS]
    assert run("fetch", url, SEEDS, "--with-inputs", "--store", quick_folder / "two").exit_code == 0
    assert Store.open(quick_folder / "two").names() == [SEEDS, PCA]


def test_where_nothing_is_listed_what_is_named_comes(
    store: Store, quick_folder: Path, flaky: Callable[[Any, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, here = upload(store.path, "flaky://store"), quick_folder / "here"
    flaky(flipped, 0)
    monkeypatch.setattr(Flaky, "listed", False)
    refused(run("fetch", url, "--store", here), 2, "no artifacts are listed there", "name those to fetch")
    assert run("fetch", url, *store.names(), "--store", here).exit_code == 0
    assert tree(here) == tree(store.path)


def test_a_damaged_chunk_on_s3_is_noticed_and_nothing_of_it_is_published(
    store: Store, bucket: str, quick_folder: Path, requests: Requests
) -> None:
    url, here = upload(store.path, f"{bucket}/store"), quick_folder / "here"
    right = (store.path / CHUNK).read_bytes()
    crc = store.open_artifact(BACKGROUND).manifest.arrays["vectors"].crcs[1]
    put(f"{url}/{CHUNK}", flipped(right))
    outcome = run("fetch", url, PCA, BACKGROUND, "--store", here)
    refused(outcome, 1, f"{url}/{CHUNK}: checksum ", f" instead of {crc:08x}, in 3 attempts")
    assert Store.open(here).names() == [PCA]

    put(f"{url}/{CHUNK}", right)
    requests.lines.clear()
    assert run("fetch", url, "--store", here).exit_code == 0
    assert tree(here) == tree(store.path)
    assert 1 <= sum("background" in chunk for chunk in requests.chunks) < chunks(store, BACKGROUND)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda data: data[:-9], "8,187 bytes instead of 8,196"),
        (lambda data: data[:-1] + flipped(data[-1:]), "after the data instead of its checksum"),
    ],
)
def test_a_chunk_that_is_cut_off_or_has_another_tail_is_refused(
    spoil: Callable[[bytes], bytes], said: str, store: Store, quick_folder: Path
) -> None:
    url = upload(store.path, "memory://store")
    put(f"{url}/{CHUNK}", spoil((store.path / CHUNK).read_bytes()))
    refused(run("fetch", url, BACKGROUND, "--store", quick_folder / "here"), 1, f"{url}/{CHUNK}", said)
    assert not (quick_folder / "here" / BACKGROUND).exists()


def test_a_chunk_that_is_missing_is_damage_and_never_zeros(store: Store, quick_folder: Path) -> None:
    url = upload(store.path, "memory://store")
    fsspec.filesystem("memory").rm(f"/store/{CHUNK}")
    refused(run("fetch", url, BACKGROUND, "--store", quick_folder / "here"), 1, f"{url}/{CHUNK}", "missing")


@pytest.mark.parametrize("spoil", [flipped, lambda data: data[: len(data) // 2], lambda data: data + 1])
def test_a_chunk_that_arrives_damaged_twice_is_asked_for_a_third_time(
    spoil: Any, store: Store, quick_folder: Path, flaky: Callable[[Any, int], None]
) -> None:
    url = upload(store.path, "flaky://store")
    flaky(spoil, 2)
    assert run("fetch", url, "--store", quick_folder / "here").exit_code == 0
    assert tree(quick_folder / "here") == tree(store.path)
    assert set(Flaky.asked.values()) == {3}
    flaky(spoil, 3)
    outcome = run("fetch", url, SEEDS, "--store", quick_folder / "there")
    assert outcome.exit_code in (Unreachable.exit_code, 1)
    assert f"{url}/{SEEDS}/" in outcome.stderr


def test_an_interrupted_fetch_continues_without_asking_again_for_what_has_come(
    store: Store, bucket: str, quick_folder: Path, requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "PARALLEL_DOWNLOADS", 1)
    url, here = upload(store.path, f"{bucket}/store"), quick_folder / "here"
    with pytest.raises(KeyboardInterrupt):
        fetch(Remote.open(url), [SEEDS], here, interrupted_at_third_chunk)
    before = list(requests.chunks)
    assert 0 < len(before) < chunks(store, SEEDS)
    assert Store(here).names() == []

    requests.lines.clear()
    outcome = run("fetch", url, "--store", here, "--json")
    assert tree(here) == tree(store.path)
    came = [chunk for chunk in requests.chunks if SEEDS in chunk]
    # The chunk that was being downloaded at Ctrl-C may have been dropped.
    assert len(set(before) & set(came)) <= 1
    assert len(came) < chunks(store, SEEDS)
    assert json.loads(outcome.stdout)["artifacts"][1]["downloaded"] < store.open_artifact(SEEDS).manifest.bytes_on_disk


def test_artifacts_that_do_not_fit_the_disk_together_are_refused_before_the_first_is_fetched(
    store: Store, quick_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, here = upload(store.path, "memory://store"), quick_folder / "here"
    total = sum(store.open_artifact(name).manifest.bytes_on_disk for name in store.names())
    with monkeypatch.context() as patch:
        patch.setattr("mmdiff.formats.storage.seam.free_bytes", lambda _: total - 1)
        refused(run("fetch", url, "--store", here), 1, f"about {total:,} bytes", f"{total - 1:,} free", "mmdiff gc may help")
        assert not here.exists()
    with pytest.raises(KeyboardInterrupt):
        fetch(Remote.open(url), [SEEDS], here, interrupted_at_third_chunk)
    assert Store(here).names() == []
    drafted = sum(path.stat().st_size for path in here.glob("work/*/object/*/c.*"))
    assert drafted
    monkeypatch.setattr("mmdiff.formats.storage.seam.free_bytes", lambda _: total - drafted - 1)
    refused(run("fetch", url, "--store", here), 1, f"about {total - drafted:,} bytes")
    monkeypatch.setattr("mmdiff.formats.storage.seam.free_bytes", lambda _: total - drafted)
    assert run("fetch", url, "--store", here).exit_code == 0
    monkeypatch.setattr("mmdiff.formats.storage.seam.free_bytes", lambda _: 0)
    assert run("fetch", url, "--store", here).exit_code == 0, "all are here"


def test_a_stage_does_not_continue_what_a_fetch_has_begun(store: Store, inputs: Inputs, quick_folder: Path) -> None:
    url, here = upload(store.path, "memory://store"), quick_folder / "here"
    with pytest.raises(KeyboardInterrupt):
        fetch(Remote.open(url), [BACKGROUND], here, interrupted_at_third_chunk)
    with chunks_of(SMALL_CHUNKS):
        import_descriptors(here, inputs.request())
    assert problems(Store.open(here)) == []
    assert Store.open(here).id(BACKGROUND) == store.id(BACKGROUND)


def test_what_was_damaged_or_removed_here_comes_again(store: Store, quick_folder: Path) -> None:
    url, here = upload(store.path, "memory://store"), quick_folder / "here"
    shutil.copytree(store.path, here, symlinks=True)
    (here / CHUNK).unlink()
    assert run("fetch", url, "--store", here).exit_code == 0
    assert problems(Store.open(here)) == []
    assert Store.open(here).id(BACKGROUND) == store.id(BACKGROUND)


def test_an_object_that_only_lost_its_name_gets_it_back(store: Store, quick_folder: Path) -> None:
    url, here = upload(store.path, "memory://store"), quick_folder / "here"
    shutil.copytree(store.path, here, symlinks=True)
    (here / BACKGROUND).unlink()
    outcome = run("fetch", url, "--store", here, "--json")
    assert json.loads(outcome.stdout)["bytes"] == 0
    assert tree(here) == tree(store.path)


def test_an_artifact_that_takes_the_name_of_another_is_mentioned(store: Store, inputs: Inputs, quick_folder: Path) -> None:
    url, here = upload(store.path, "memory://store"), quick_folder / "here"
    import_descriptors(here, inputs.request(name="others.npy"))
    before = Store.open(here).object_name(BACKGROUND)
    outcome = run("fetch", url, BACKGROUND, "--store", here)
    assert f"{BACKGROUND} was {before} before" in outcome.stderr
    assert Store.open(here).id(BACKGROUND) == store.id(BACKGROUND)


def test_a_manifest_that_was_changed_is_not_believed(store: Store, quick_folder: Path) -> None:
    url, here = upload(store.path, "memory://store"), quick_folder / "here"
    text = (store.path / BACKGROUND / "zarr.json").read_bytes()
    put(f"{url}/{BACKGROUND}/zarr.json", text.replace(b'"rows": 600', b'"rows": 601'))
    refused(run("fetch", url, "--store", here), 1, f"{url}/{BACKGROUND}/zarr.json", "no such object")
    put(f"{url}/{BACKGROUND}/zarr.json", json.dumps(json.loads(text)).encode())
    refused(run("fetch", url, "--store", here), 1, f"{url}/{BACKGROUND}/zarr.json", "form")
    put(f"{url}/{BACKGROUND}/zarr.json", text[:-100])
    refused(run("fetch", url, "--store", here), 1, f"{url}/{BACKGROUND}/zarr.json")
    assert not here.exists()


def test_a_record_of_a_run_that_was_changed_is_not_believed(store: Store, quick_folder: Path) -> None:
    url, file = upload(store.path, "memory://store"), f"{BACKGROUND}/run/zarr.json"
    put(f"{url}/{file}", (store.path / file).read_bytes().replace(b'"seconds": ', b'"seconds": 1'))
    refused(run("fetch", url, BACKGROUND, "--store", quick_folder / "here"), 1, f"{url}/{file}", "damaged")
    fsspec.filesystem("memory").rm(f"/store/{file}")
    refused(run("fetch", url, BACKGROUND, "--store", quick_folder / "here"), 1, f"{url}/{file}", "missing")


def test_commands_that_read_take_a_url_and_fetch_what_they_need(
    store: Store, bucket: str, quick_folder: Path, tmp_path: Path, requests: Requests
) -> None:
    url = upload(store.path, f"{bucket}/store")
    there = json.loads(run("inspect", "--store", url, "--json").stdout)
    here = json.loads(run("inspect", "--store", store.path, "--json").stdout)
    assert there == here | {"store": url}
    assert requests.chunks == []
    for place in (store.path, url):
        assert run("inspect", SEEDS, "--rows", "3:5", "--store", place).exit_code == 0
        outcome = run("export", SEEDS, tmp_path / f"{Path(place).name}.npz", "--store", place)
        assert outcome.exit_code == 0, outcome.output
    assert (tmp_path / "store.npz").read_bytes()
    assert len(requests.chunks) == chunks(store, SEEDS)
    assert [Store.open(cache).names() for cache in (quick_folder / "cache").iterdir()] == [[SEEDS]]
    outcome = run("verify", "--store", url, "--json")
    assert (outcome.exit_code, json.loads(outcome.stdout)["ok"]) == (0, True)
    assert len(requests.chunks) == chunks(store, *store.names())


def test_the_cache_follows_what_is_published(store: Store, inputs: Inputs) -> None:
    url = upload(store.path, "memory://store")

    def rows() -> Any:
        return json.loads(run("inspect", BACKGROUND, "--rows", ":2", "--store", url, "--json").stdout)

    before = rows()
    with chunks_of(SMALL_CHUNKS):
        import_descriptors(store.path, inputs.request(name="others.npy"))
    assert rows() == before
    upload(store.path, url)
    after = rows()
    assert after != before
    assert after == json.loads(run("inspect", BACKGROUND, "--rows", ":2", "--store", store.path, "--json").stdout)


@pytest.mark.parametrize(
    "command",
    ["import FILE --role background", "build-graph", "import-graph FILE", "diffuse", "logreg", "gc", "plan diffuse", "doctor"],
)
def test_commands_that_need_the_store_here_say_how_to_fetch_it(command: str) -> None:
    refused(run(*command.split(), "--store", "s3://bucket/store"), 2, "mmdiff fetch s3://bucket/store --store FOLDER")


def test_a_bucket_or_store_that_does_not_exist_is_one_line(bucket: str, quick_folder: Path) -> None:
    outcome = run("fetch", "s3://there-is-no-such-bucket/store", "--store", quick_folder / "here")
    refused(outcome, 2, "s3://there-is-no-such-bucket/store: no store there", "bucket does not exist")
    refused(run("inspect", "--store", f"{bucket}/elsewhere"), 2, f"{bucket}/elsewhere: no store there")


@pytest.mark.parametrize("url", ["github://a/b", "reference://x", "zip://a"])
def test_url_that_its_file_system_does_not_take_is_refused(url: str) -> None:
    refused(run("inspect", "--store", url), 2, f"{url}: not a URL that can be read")


def test_bad_urls_and_names_are_one_line(store: Store, quick_folder: Path) -> None:
    url, to = upload(store.path, "memory://store"), ("--store", quick_folder / "here")
    refused(run("fetch", url, "graph/W", *to), 2, "graph/W: not in the store", f"It holds: {BACKGROUND}, {SEEDS}, {PCA}.")
    refused(run("inspect", "graph/W", "--store", url), 2, "graph/W: not in the store", PCA)
    refused(run("fetch", url, "../secrets", *to), 2, "not the name of an artifact")
    refused(run("fetch", "s9://bucket/store", *to), 2, "unknown protocol s9://")
    refused(run("fetch", "bucket/store", *to), 2, "not a URL")
    refused(run("fetch", "http://user:secret@127.0.0.1:9/store", *to), 2, "http://127.0.0.1:9/store", "cannot be read")
    assert "secret" not in run("fetch", "http://user:secret@127.0.0.1:9/store", *to).output
    assert not (quick_folder / "here").exists()


def test_a_host_that_does_not_answer_is_one_line(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    refused(run("inspect", "--store", f"{bucket}/store"), 2, f"{bucket}/store/zarr.json", "Could not connect")


def test_without_credentials_what_is_open_to_all_is_read_and_the_rest_refused(
    store: Store, bucket: str, quick_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(f"{bucket}/closed/zarr.json", (store.path / "zarr.json").read_bytes())
    url = upload(store.path, f"{bucket}/open", "none", s3_additional_kwargs={"ACL": "public-read"})
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(key)
    for key in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(key, "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    refused(run("inspect", "--store", f"{bucket}/closed"), 2, f"{bucket}/closed", "no credentials", "AWS_ACCESS_KEY_ID")
    outcome = run("fetch", url, "--store", quick_folder / "here")
    assert outcome.exit_code == 0, outcome.output
    assert tree(quick_folder / "here") == tree(store.path)


def test_a_folder_with_other_files_is_not_fetched_into(store: Store, quick_folder: Path) -> None:
    (quick_folder / "photos").mkdir()
    (quick_folder / "photos" / "one.jpg").touch()
    url = upload(store.path, "memory://store")
    refused(run("fetch", url, "--store", quick_folder / "photos"), 2, "not a store")


def test_without_the_extra_the_message_is_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    refused(run("inspect", "--store", "s3://bucket/store"), 2, "pip install 'mmdiff[s3]'")


def test_fetch_in_python(store: Store, quick_folder: Path) -> None:
    remote = Remote.open(upload(store.path, "memory://store"))
    assert remote.names == store.names()
    [fetched] = fetch(remote, [PCA], quick_folder / "here", silent)
    assert fetched.object == store.id(PCA)


def test_a_fetch_that_is_interrupted_leaves_no_input_without_its_name(store: Store, quick_folder: Path) -> None:
    url = upload(store.path, "memory://store")
    local, point = quick_folder / "local", seam.point
    for names in (["descriptors/background", "models/pca"], ["models/pca", "descriptors/background"]):
        shutil.rmtree(local, ignore_errors=True)
        linked: list[str] = []

        def noted(name: Path, target: str, scratch: Path, linked: list[str] = linked) -> None:
            linked.append(name.name)
            point(name, target, scratch)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(seam, "point", noted)
            fetched = fetch(Remote.open(url), names, local, silent)
        assert linked == ["pca", "background"]
        assert [item.artifact for item in fetched] == names


def test_the_work_folder_of_a_fetch_killed_at_its_end_goes_with_the_next_fetch(store: Store, quick_folder: Path) -> None:
    url, local = upload(store.path, "memory://store"), quick_folder / "local"
    fetch(Remote.open(url), ["models/pca"], local, silent)
    (local / "work" / "models.pca").mkdir(parents=True)
    (local / "work" / "models.pca" / "lock").touch()
    fetch(Remote.open(url), ["models/pca"], local, silent)
    assert not (local / "work").exists()


def test_inputs_that_the_remote_store_no_longer_has_are_left_out(store: Store) -> None:
    url = upload(store.path, "memory://store")
    assert with_inputs(Remote.open(url), [BACKGROUND]) == [PCA, BACKGROUND]
    files, root = fsspec.url_to_fs(f"{url}/{PCA}")
    files.rm(root, recursive=True)
    assert with_inputs(Remote.open(url), [BACKGROUND]) == [BACKGROUND]


def test_a_name_that_leads_astray_is_fetched_again(store: Store, quick_folder: Path) -> None:
    remote, here = Remote.open(upload(store.path, "memory://store")), quick_folder / "here"
    fetch(remote, [PCA], here, silent)
    (here / PCA).unlink()
    (here / PCA).symlink_to("/elsewhere")
    [fetched] = fetch(remote, [PCA], here, silent)
    assert (fetched.downloaded, fetched.replaced) == (0, None)
    assert Store.open(here).id(PCA) == store.id(PCA)


def test_a_listing_that_fails_is_an_error_but_not_of_a_web_server(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the listing is broken")

    with web_server(store.path) as url:
        from_web, in_memory = Remote.open(url), Remote.open(upload(store.path, "memory://store"))
        for remote in (from_web, in_memory):
            monkeypatch.setattr(remote._files, "ls", failing)
        assert from_web.names == []
    with pytest.raises(Unreachable, match=r"^memory://store/descriptors: cannot be read \(the listing is broken\)\. Check"):
        _ = in_memory.names


def test_urls_that_fsspec_cannot_open_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    refused(run("inspect", "--store", "ftp://host:port/store"), 2, "ftp://host:port/store: not a URL that can be read (Port")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    refused(run("inspect", "--store", "gs://bucket/store"), 2, "gs://bucket/store: Please install gcsfs")


def test_a_download_that_fails_is_not_tried_again_once_another_has_failed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, stop, attempts = Remote.open(upload(store.path, "memory://store")), threading.Event(), []

    def failing(path: str, **_: Any) -> bytes:
        attempts.append(path)
        stop.set()
        raise OSError("connection reset")

    monkeypatch.setattr(remote._files, "cat_file", failing)
    writer = ArrayWriter(tmp_path / "vectors", store.open_artifact(BACKGROUND).spec("vectors"))
    download = fetching._ChunkDownload(remote, CHUNK, writer, 1, 0, lambda _: None)
    for _ in ("fails", "does not begin"):
        download.run(stop)
        assert len(attempts) == 1
    assert not writer.crcs
    assert list(writer.folder.iterdir()) == []
