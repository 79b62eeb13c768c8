"""The map of a study: kernel, PCA, learning, collapsed or diverged, over widths and learning rates."""
