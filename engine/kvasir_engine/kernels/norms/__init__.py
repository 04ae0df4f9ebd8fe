"""Norms, and the additions and sums over ranks before them."""
