"""Toys: groups of rollouts small enough to be worked out by hand; pure functions, settings -> tables of numbers."""
