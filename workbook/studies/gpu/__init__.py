"""Everything that is to be measured on a GPU, by one command that goes on where it was broken off.

    python -m workbook gpu            on one card, at most 40 minutes, into data/results/gpu
    python -m workbook gpu --dry      the same code at tiny sizes on a CPU, into a temporary folder

`campaign` starts a process (`worker`) that measures one row after the other; each row is a module with a function
`measure(bench) -> tables`.
"""
