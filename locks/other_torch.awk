# Writes a lock for another index's torch: the CUDA libraries of the default wheel are left out (that
# torch names its own), and torch's hashes, which are those of the default wheel.
/^[^ #]/ { cuda = /^(nvidia-|cuda-|triton)/; torch = /^torch==/ }
cuda || (torch && /--hash=/) { next }
torch { sub(/ \\$/, "") }
{ print }
