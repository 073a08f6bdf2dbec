"""What holds for all files: imports, length, the tree in the docs."""
