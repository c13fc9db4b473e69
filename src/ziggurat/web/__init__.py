"""One application: a page for a browser over an API for programs."""
