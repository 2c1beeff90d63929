"""The study of chapters/softmax: what is measured, how, and what was registered."""
