"""The CPU C kernel: its sources (`src/`), its Python binding and the spans it reads."""
