"""NVML's figures of the GPUs of this node, read in threads of their own.

NVML may block for ever when a GPU or its driver is in trouble, which is when its figures
matter. So each GPU has threads of its own, and nothing ever waits for one of them.
"""
