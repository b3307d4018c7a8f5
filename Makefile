# Two commands do all the set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo test check test-flower test-nvflare test-flower-lowest test-nvflare-lowest test-ray bench verdicts \
	dist docs resolve image-steps format clean fuzz crash lock
help:
	@echo "make demo    audit an embedded federation and write a report"
	@echo "make test    run all tests"
	@echo "make check   everything that CI checks: format, lint, types, import contracts, tests"
	@echo "make test-ray  run cases on a Ray cluster of this machine and on submitit's jobs, in an environment of its own"
	@echo "make test-flower, make test-nvflare   record real federations of these frameworks, in environments of their own"
	@echo "make test-flower-lowest, make test-nvflare-lowest   the same with the lowest versions that are supported"
	@echo "make fuzz    give every reader of files thousands of damaged ones; with FUZZ=5000 as many to each"
	@echo "make crash   kill six long commands at random moments and compare what they continue to; with KILLS=100 for each"
	@echo "make lock    write requirements-*.lock: the pins of constraints.txt with hashes, without torch"
	@echo "make bench   measure speed, memory and start-up beside what is demanded"
	@echo "make dist    build wheel, sdist and a bill of materials, and try each package in a fresh environment"
	@echo "make resolve check that every line of docs/install.md resolves (minutes; installs nothing)"
	@echo "make image-steps  run the steps of the Dockerfile in a fresh environment, without Docker"
	@echo "make docs    build the documentation in site/, and check its links"
	@echo "make verdicts  audit situations of which the true answer is known, and print what was said; with SEED=7 COUNT=200"
	@echo "             random ones, whose truth comes from formulas that share no code with fedglass"

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/fedglass demo -o demo

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy bench tools
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n auto --dist worksteal

# Frameworks pin packages that others pin differently: each has an environment and tested versions of its own. So has
# the lowest version of each that is supported: flower-lowest installs the extra `flower` by constraints-flower-lowest.txt.
.venv-%/.installed: pyproject.toml constraints-%.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-$*.txt \
		-e '.[$(*:-lowest=)$(EXTRA_$(*:-lowest=))]' $(ALSO_$(*:-lowest=)) pytest hypothesis
	@touch $@

EXTRA_flower := ,dp
ALSO_flower := 'flwr[simulation]'
ALSO_ray := submitit

test-flower test-nvflare test-flower-lowest test-nvflare-lowest: test-%: .venv-%/.installed
	.venv-$*/bin/python -m pytest -W default tests/integration/$(*:-lowest=)

test-ray: .venv-ray/.installed
	.venv-ray/bin/python -m pytest -W default tests/integration/ray tests/execution/test_submitit.py

FUZZ ?= 1200
KILLS ?= 20

fuzz: $(STAMP)
	FEDGLASS_FUZZ=$(FUZZ) $(BIN)/python -m pytest -n auto --dist worksteal tests/fuzz

crash: $(STAMP)
	FEDGLASS_KILLS=$(KILLS) $(BIN)/python -m pytest -n auto --dist worksteal tests/crash

lock: $(STAMP)
	$(BIN)/python tools/lock.py

bench: $(STAMP)
	$(BIN)/python -m bench

verdicts: $(STAMP)
	SEED=$(SEED) COUNT=$(COUNT) $(BIN)/python tools/verdicts.py

# The second file replaces the first: everything else is installed already.
dist:
	rm -rf dist build .venv-dist
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/python -m pip install --quiet --disable-pip-version-check build
	.venv-dist/bin/python -m build --outdir dist .
	.venv-dist/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	$(TRY_DIST)
	.venv-dist/bin/python tools/bill.py dist/fedglass.cdx.json
	.venv-dist/bin/python -m pip install --quiet --no-deps --force-reinstall dist/*.tar.gz
	$(TRY_DIST)

TRY_DIST = cd .venv-dist && bin/fedglass --version && bin/fedglass list -q > list.txt \
	&& bin/fedglass init -q --force plan.toml && bin/fedglass check -q plan.toml

resolve:
	rm -rf .venv-resolve
	$(PYTHON) -m venv .venv-resolve
	grep '^pip install ' docs/install.md | while read -r line; do echo "$$line"; \
		eval ".venv-resolve/bin/$${line} --dry-run --quiet --disable-pip-version-check" || exit 1; done

# Docker's own index of torch is left out: constraints.txt names the version.
image-steps:
	rm -rf .venv-image
	$(PYTHON) -m venv .venv-image
	sed -n 's/^RUN //p' Dockerfile > .venv-image/steps.sh
	PATH="$(CURDIR)/.venv-image/bin:$$PATH" TORCH_INDEX= sh -eux .venv-image/steps.sh

.venv-docs/.installed: constraints-docs.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-docs.txt mkdocs-material
	@touch $@

docs: .venv-docs/.installed
	.venv-docs/bin/python tools/build_site.py

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .venv-* demo dist build site
