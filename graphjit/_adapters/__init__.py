"""Array libraries as graphjit sees them: one interface, one implementation a library."""
