"""The C kernel for CPUs. Its sources are in `csrc/` of the repository."""
