# The commands of the project; `just` lists them. They use .venv where there is one.

export PATH := justfile_directory() / ".venv/bin:" + env("PATH")

# List the recipes.
default:
    @just --list

# Everything that can be checked without running the code, and the docs.
check: lint types spelling docs

# ruff and cython-lint.
lint:
    ruff check .
    ruff format --check .
    git ls-files -z '*.pyx' '*.pxi' | xargs -0 --no-run-if-empty cython-lint

# mypy --strict.
types:
    mypy --strict graphjit

# codespell.
spelling:
    codespell .

# The tests that need no GPU, once with and once without the Cython form of the hot path.
test *args:
    python -m pytest {{ args }}
    GRAPHJIT_PURE_PYTHON=1 python -m pytest {{ args }}

# The tests on this machine's GPU; a skipped one is a failure.
test-gpu *args:
    GRAPHJIT_REQUIRE_GPU=1 python -m pytest --driver=both {{ args }}

# The HTML pages in docs/_build/html; a warning is an error.
docs:
    python -m sphinx -n -W --keep-going -E -q -b html docs docs/_build/html

# Measure on this machine's GPU and write the tables in docs/generated.
bench *args:
    python tests/perf {{ args }}

# Try each CuPy function of the tests on this machine's GPU and write their table in docs/generated.
functions:
    python tests/gpu/function_table.py docs/generated/functions.md

# The tests on this machine's GPU under compute-sanitizer: an access outside of memory is a failure.
memcheck *args:
    GRAPHJIT_REQUIRE_GPU=1 compute-sanitizer --tool memcheck --report-api-errors no --show-backtrace device \
        --target-processes all --error-exitcode 99 python -m pytest tests/gpu -p no:cacheprovider -m "not conditional" {{ args }}

# Run random programs, eager against graphed, on this machine's GPU, and watch the memory.
soak *args:
    python tests/stress {{ args }}

# Call CuPy's public functions on this machine's GPU and write their table in docs/generated.
api:
    python tests/gpu/api_coverage.py docs/generated/api.md
