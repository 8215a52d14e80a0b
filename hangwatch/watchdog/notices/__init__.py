"""What the watchdog notices beside a verdict: how a job starts, runs late, or costs."""
