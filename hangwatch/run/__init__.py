"""What the processes of one run agree on: directories, facts, who is there, what they say."""
