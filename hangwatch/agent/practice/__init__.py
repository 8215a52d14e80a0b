"""Facts on inefficient habits of this rank, which efficiency judges."""
