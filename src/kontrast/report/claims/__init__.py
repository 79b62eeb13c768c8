"""The page of measured claims, the same as markdown, and their figures."""
