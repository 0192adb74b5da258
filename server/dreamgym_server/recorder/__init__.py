"""The recorder: stands between an agent and a real MCP server, and writes down what both said.

    agent ── front ── upstream        the bytes go through as they are
               │         │
               └── Tape ─┘            gets a copy; in a thread of its own: Tap → redaction → recordings/RUN.jsonl

Four pairs of front and upstream: `pipe` (stdio, stdio), `reverse_proxy` (HTTP, HTTP), `bridge` (HTTP in front of a
stdio server), `outlet` (stdio in front of an HTTP server). None of them parses on the agent's way more than it must,
none waits for the disk, and nothing that goes wrong with the recording reaches the agent.
"""
