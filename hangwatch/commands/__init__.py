"""The subcommands of ``hangwatch``, but for the one that watches a job."""
