"""What is known of a job, indexed: who came how far, waits where, ended how."""
