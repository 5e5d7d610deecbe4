"""Placement: the pure decision which ring of nodes holds a model, and why. No IO, no clock, no random."""
