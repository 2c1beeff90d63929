"""The study of chapters/teaching: what is measured, how, and what was registered."""
