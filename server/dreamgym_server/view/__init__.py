"""What a person sees of episodes, recordings, training and reports: the page, and the JSON that it shows."""
