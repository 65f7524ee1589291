"""`python -m workbench` is the command `workbench`, whatever lies on the path."""

from workbench.cli import main

if __name__ == "__main__":
    main()
