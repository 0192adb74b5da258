"""The recorder: stands between an agent and a real MCP server, and writes down what both said.

    agent ── front ── upstream        the bytes go through as they are
               │         │
               └── Tape ─┘            gets a copy; in a thread of its own: Tap → redaction → recordings/RUN.jsonl

Four modules are named by front and upstream: stdio_to_stdio, http_to_http, http_to_stdio, stdio_to_http. None of them
parses on the agent's way more than it must, none waits for the disk, and nothing that goes wrong with the recording
reaches the agent.
"""
