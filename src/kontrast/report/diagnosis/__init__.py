"""The page of a diagnosis, its figure and its files: one file for each question, and `page` that joins them."""
