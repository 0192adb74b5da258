"""Views: what a server's answers show of its world, and what changes them, for servers that report no state."""
