"""The C kernel for the CPU: its sources (`src/`), its Python binding and the spans it reads."""
