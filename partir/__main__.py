"""`python -m partir`: the command line where the script is not on the path."""

import sys

from partir.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
