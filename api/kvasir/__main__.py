"""`python -m kvasir` is the `kvasir` command."""

from kvasir.cli.main import main

if __name__ == "__main__":
    main()
