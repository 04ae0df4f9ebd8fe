"""A start's launches gone through without a device, so that all kernels they need are compiled at
once: they would be compiled one after the other, each when it is first launched.
"""
