"""The study of chapters/coupling: what is measured, how, and what was registered."""
