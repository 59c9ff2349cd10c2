"""`python -m coordinator`."""

from coordinator.cli.entry import main

if __name__ == "__main__":
    main()
