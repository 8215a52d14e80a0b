"""What NCCL itself tells: its RAS service, its version, and how it reaches other ranks."""
