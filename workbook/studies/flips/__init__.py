"""The study of chapters/flips: what is measured, how, and what was registered."""
