"""Stateful stand-ins for the ports: cluster, fleet, clock, terminal, interrupts. They hold state, and every reply can be steered."""
