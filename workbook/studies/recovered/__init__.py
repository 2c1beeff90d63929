"""The study of chapters/recovered: what is measured, how, and what was registered."""
