"""The MCP server: the agent's door and the trainer's door to simulated and real environments."""
