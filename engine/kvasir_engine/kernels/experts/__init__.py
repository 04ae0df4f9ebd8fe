"""Experts of gpt-oss, and matrices in MXFP4."""
