"""What a trial starts; alone here, since Python puts its directory first in sys.path."""
