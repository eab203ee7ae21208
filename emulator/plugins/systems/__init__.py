"""Discrete-event simulation of ranks, clients and storage, and the estimation of a system from results."""
