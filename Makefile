# Everything a new machine needs: Python 3.11 or newer, make and git. Each target makes .venv when it is missing or out of date.
# The Python is found by packaging/find-python; `make PYTHON=python3.13` names another one.
PYTHON ?=
VENV := .venv
OLDEST := .venv-oldest
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# The tests start hundreds of processes: each would compile the source again where no bytecode may be written.
export PYTHONDONTWRITEBYTECODE :=

# Tests of kernels that also run as plain Python, where coverage sees their lines; there, unsigned numbers warn as they wrap.
KERNELS := tests/graph/test_symmetrise.py tests/graph/test_components.py tests/diffusion/test_diffuse_kernels.py tests/knn/test_knn.py

# What is run with the oldest versions: the public API, every file format, the store, search, diffusion, commands and shells.
WITH_OLDEST := tests/api/test_sketch.py tests/api/test_row_order.py tests/api/test_notebook.py tests/sources tests/formats/test_arrays.py \
	tests/formats/test_golden.py tests/formats/test_remote.py tests/knn/test_knn.py tests/diffusion/test_diffusion.py tests/export \
	tests/report tests/prediction tests/cli/test_showing.py tests/cli/test_completion.py

# Without torch, and without what old versions of pyarrow cannot do: string views, and missing rows of lists of fixed size.
NOT_WITH_OLDEST := --ignore tests/sources/test_reading_archives.py -k "not regression" \
	--deselect "tests/sources/test_reading_columns.py::test_parquet_columns[array3-expected3]" \
	--deselect tests/sources/test_reading_arrow.py::test_columns_behind_views_are_read

# Tests of commands that may write no large file, where coverage could not write its own.
NO_FILES := --deselect tests/formats/test_disk_errors.py::test_file_size_limit_is_a_sentence_and_without_it_the_same_command_continues \
	--deselect tests/cli/test_resources.py::test_commands_without_their_resources_end_in_a_sentence_and_leave_the_store_intact

.PHONY: demo test test-long test-oldest test-interop coverage check bench bench-scale docs site clean

demo: $(READY)
	$(BIN)/python docs/demo.py

# Four workers for two cores: many tests wait for processes of their own, or for the disk.
test: $(READY)
	$(BIN)/pytest -n 4 --dist worksteal tests

test-long: $(READY)
	$(BIN)/python -m tests.long

# Libraries that read our exports. Embedding Atlas would install models of images and text, which its table does not need.
test-interop: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[interop]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps embedding-atlas==0.26.0
	$(BIN)/pytest tests/export/test_interop.py

# The oldest versions that pyproject.toml allows, in an environment and with compiled kernels of their own, without torch.
# Warnings of old versions are not ours.
test-oldest: $(OLDEST)/.ready
	NUMBA_CACHE_DIR=$(OLDEST)/kernels $(OLDEST)/bin/python -m pytest -W default $(WITH_OLDEST) $(NOT_WITH_OLDEST)

coverage: $(READY)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 2 --dist worksteal $(NO_FILES) tests
	-NUMBA_DISABLE_JIT=1 $(BIN)/coverage run -m pytest -n 2 -W "ignore:overflow encountered" -k "not memory and not killed" $(KERNELS)
	$(BIN)/coverage combine
	$(BIN)/coverage report --skip-covered
	$(BIN)/coverage json -q -o .coverage.json
	$(BIN)/python docs/covered.py .coverage.json

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	-$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt graphlearning
	$(BIN)/python -m benchmarks

bench-scale: $(READY)
	$(BIN)/python -m benchmarks F1M F10M F100M growth cluster

docs: $(READY)
	$(BIN)/python docs/generate.py

# The documentation as a site, in site/: open site/index.html; it needs no server and no network.
site: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[site]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

# The bound on boto3 is what s3fs of that time takes; without it, pip tries all versions for many minutes.
$(OLDEST)/.ready: pyproject.toml constraints-oldest.txt
	test -x $(OLDEST)/bin/python || { python=$$(packaging/find-python $(PYTHON)) && "$$python" -m venv $(OLDEST); }
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check -c constraints-oldest.txt -e '.[cpu,files,sklearn,report,s3,dask,web]' pytest hypothesis flask flask-cors 'moto[s3]' 'boto3<1.41.6' safetensors
	touch $@

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || { python=$$(packaging/find-python $(PYTHON)) && "$$python" -m venv $(VENV); }
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,cpu,files,torch,sklearn,report,s3,dask,web]'
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) site build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-store demo-report.html
