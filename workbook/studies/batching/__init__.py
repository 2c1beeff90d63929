"""The study of chapters/batching: what is measured, how, and what was registered."""
