"""The program of a trial; alone here, since Python puts its directory first in sys.path."""
