"""``python -m robustfl``."""

from robustfl.cli import main

if __name__ == "__main__":
    main()
