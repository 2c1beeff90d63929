"""The study of chapters/language: what is measured, how, and what was registered."""
