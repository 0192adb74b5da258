"""The page that shows episodes, recordings, training and reports to a person, and the JSON behind it."""
