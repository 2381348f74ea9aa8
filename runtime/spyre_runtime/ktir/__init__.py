"""Kernel Tile IR: dialect, text, verifier, emulator and builder.

Nothing here is imported by `import spyre_runtime`; xDSL is loaded by the modules that need it.
"""
