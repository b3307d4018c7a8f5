"""Networks, their initial weights, and the caller that makes them functions of their weights."""
