"""The examples run as users run them, and what README.md shows is true."""
