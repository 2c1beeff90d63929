"""The study of chapters/worlds: what is measured, how, and what was registered."""
