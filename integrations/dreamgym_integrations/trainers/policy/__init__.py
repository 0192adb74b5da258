"""Training a policy: playing, learning from play or from recordings, and the endpoint that its agent talks to."""
