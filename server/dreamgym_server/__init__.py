"""The MCP server of simulated and real environments: MCP for agents, a control API for trainers."""
