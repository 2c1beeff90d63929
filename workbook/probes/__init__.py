"""Probes: measurements of a policy on its rollouts, as tables that extend the token table. Nothing here draws.

Each takes a policy and `Rollouts`, and leaves the policy exactly as it was.
"""
