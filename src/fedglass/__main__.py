"""`python -m fedglass`: the command line where its script is not on the path."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # With -m Python looks into the current folder first. Code that a plan names is taken from there only where the
    # user says so (--code), unless fedglass itself lies there.
    if not sys.flags.safe_path and Path(sys.path[0]) != Path(__file__).parents[1]:
        del sys.path[0]
    from fedglass.cli.main import main

    main()
