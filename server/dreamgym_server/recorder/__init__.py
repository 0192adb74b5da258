"""The recorder: a proxy between an agent and a real MCP server that records the messages of both.

    agent ── front ── upstream        the bytes pass through unchanged
               │         │
               └── Tape ─┘            gets a copy; in a thread of its own: Tap → redaction → recordings/RUN.jsonl

Four modules are named after front and upstream: stdio_to_stdio, http_to_http, http_to_stdio, stdio_to_http. They parse
no more than they must before they pass a message on, they do not wait for the disk, and no failure of the recording
reaches the agent.
"""
