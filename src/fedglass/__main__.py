"""`python -m fedglass`: the command line where its script is not on the path."""

from fedglass.cli.main import main

if __name__ == "__main__":
    main()
