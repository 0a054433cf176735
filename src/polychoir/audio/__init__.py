"""Samples in and out: containers, rates, order. Knows no model, no server, no tensor library."""
