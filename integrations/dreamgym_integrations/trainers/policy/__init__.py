"""Training a policy: playing, learning from play or from recordings, and the endpoint that its agent talks to."""

from dreamgym_integrations.trainers.common.extra import check_installed

check_installed("training a policy")
