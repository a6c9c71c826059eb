"""`python tests/bench/run.py`: the benchmark against peers, see `cli.py`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from bench.cli import main

    raise SystemExit(main(sys.argv[1:]))
