"""Worker processes: what is said to them, how they are kept alive, and the engine that stands before them."""
