"""The engine in a process of its own: commands in, frames and tokens out."""
