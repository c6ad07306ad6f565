"""Applications for those who have photographs, from a folder to a model and its use."""
