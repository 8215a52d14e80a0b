"""What NVML says of the GPUs of this node, read beside the event loop.

NVML may block for ever when a GPU or its driver is in trouble, which is when its figures
matter. So each GPU has threads of its own, and nobody ever waits for one of them.
"""
