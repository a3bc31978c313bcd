"""Starting a job with the agent in it, and watching it: schedule, slow steps, bounded disk."""
