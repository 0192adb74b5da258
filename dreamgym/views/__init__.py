"""What the answers of a server show of its world, where no server tells a state: views, and what changes them."""
