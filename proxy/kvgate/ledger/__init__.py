"""Reservations, queue and grants of one pool. The contract is in `base`."""
