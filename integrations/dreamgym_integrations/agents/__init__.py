"""Agents: each is `async (task, mcp_url, policy_url) -> answer`."""
