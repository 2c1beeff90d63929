"""The study of chapters/cancelled: what is measured, how, and what was registered."""
