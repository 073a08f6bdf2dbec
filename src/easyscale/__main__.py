"""``python -m easyscale``: the same as the ``easyscale`` command."""

from easyscale.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
