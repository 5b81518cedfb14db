"""The CPU kernel in C: its sources (`src/`), its Python binding and the spans it reads."""
