"""The commands of `python -m workbook`: a module a group, which adds its commands and runs them."""
