"""The study of chapters/credit: what is measured, how, and what was registered."""
