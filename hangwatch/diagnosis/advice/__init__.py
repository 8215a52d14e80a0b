"""What to do about a finding: tables, and the choice from them."""
