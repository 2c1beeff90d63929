"""The study of chapters/drift: what is measured, how, and what was registered."""
