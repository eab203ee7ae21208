"""Ranks, clients and storage in virtual time: what no lab has, predicted from the same plan and record."""
