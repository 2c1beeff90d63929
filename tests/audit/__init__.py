"""A second implementation of the claims ledger, from the Parquet tables and registrations alone.

    make audit            or: python -m audit, with tests/ on the path

Nothing here imports the package. `reckoning` has the statistics, `definitions` each outcome's number per unit,
`provenance` what manifests and git say, `comparison` lays both ledgers side by side.
"""
