"""The ways into a server: MCP for agents, the control API for trainers, OpenEnv's API."""
